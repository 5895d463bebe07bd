"""Collapse of a robot: a low trunk, or a knee, thigh or trunk resting on the floor."""

import torch
from torch import Tensor

from mqe.world.robots import Robots
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState

LOW_TIME = 0.6  # [s] without interruption until a low trunk is a collapse
REST_TIME = 0.3  # [s] without interruption until a knee, thigh or trunk on the floor is a collapse


def rests_on_floor(state: SceneState, robots: Robots) -> Tensor:
    """Return whether a knee, thigh or trunk of each robot touches the floor, (N, A) bool, from its
    kinematics.
    """
    return robots.rests_on_floor(state.up_b, state.robot_pos[..., 2], state.joint_pos)


class CollapseTimers:
    """The time since each robot's trunk became low, and its time in contact with more than its
    feet.
    """

    SIZE = 2  # numbers a robot

    def __init__(self, values: Tensor, robots: Robots) -> None:
        """Store the timers in ``values`` (N, A, 2) [s]. Zero stands for a robot on its feet.

        A negative timer first rises to zero in any posture.
        """
        self.values = values
        self._robots = robots
        limits = torch.tensor([LOW_TIME, REST_TIME], device=values.device)
        # Sums of steps fall short of whole seconds by rounding.
        self._limits = limits - 0.5 * STEP_DT

    def update(self, state: SceneState) -> None:
        """Add one control step with the end ``state``. Timers of robots on their feet return to
        zero.
        """
        is_low = state.robot_pos[..., 2] < self._robots.low_height
        is_down = torch.stack((is_low, rests_on_floor(state, self._robots)), dim=-1)
        self.values.add_(STEP_DT).mul_(is_down | (self.values < 0.0))

    @property
    def collapsed(self) -> Tensor:
        """(N, A) bool: the robot has been low, or on the floor, for too long."""
        return (self.values > self._limits).any(dim=-1)
