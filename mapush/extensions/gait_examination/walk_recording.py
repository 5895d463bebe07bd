"""A walk's recorded physics steps, and metrics of feet and motors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mapush.extensions.gait_examination.gait_worlds import PhysicsStep
from mapush.extensions.gait_examination.measures import (
    cost_of_transport,
    fast_power_share,
    foot_motion,
    motor_torque,
    slip_share,
    stance_depth,
    swing_clearance,
)
from mqe.world.robots import Robots
from mqe.world.scene import PHYSICS_DT, STEP_DT


class Walk(NamedTuple):
    """T physics steps of N robots."""

    clearance: Tensor  # (T, N, 4) [m] of the feet's lowest points
    foot_speed: Tensor  # (T, N, 4) [m/s] horizontal, of the same points
    torque: Tensor  # (T, N, 12) [N m]
    joint_vel: Tensor  # (T, N, 12) [rad/s]


class Recorder:
    """Records the first N robots in every physics step."""

    def __init__(self, num_robots: int, robots: Robots, torque_limit: Tensor) -> None:
        """Record ``num_robots`` robots of the kind ``robots``.

        ``torque_limit`` (J,) [N m] limits the torque of each motor.
        """
        self._num_robots = num_robots
        self._robots = robots
        self._limit = torque_limit
        self._steps: list[Walk] = []

    def watch(self, step: PhysicsStep) -> None:
        """Record one physics step."""
        state = step.state.like(step.state.rows[:, : self._num_robots])
        joint_pos = state.joint_pos[:, 0]
        joint_vel = state.joint_vel[:, 0]
        feet = foot_motion(state, self._robots)
        torque = motor_torque(
            self._robots, step.motor_target[: self._num_robots], joint_pos, joint_vel, self._limit
        )
        self._steps.append(Walk(feet.clearance[:, 0], feet.speed[:, 0], torque, joint_vel))

    def walk(self) -> Walk:
        """Return all recorded steps."""
        return Walk(*(torch.stack(part) for part in zip(*self._steps, strict=True)))


def describe_feet(walk: Walk, robots_a_command: int) -> dict[str, float | list[float]]:
    """Return clearance, slip and depth of walking robots' feet.

    Each command has ``robots_a_command`` consecutive robots.
    """
    peaks = swing_clearance(walk.clearance, PHYSICS_DT)
    peaks = peaks.unflatten(0, (-1, robots_a_command)).mean(dim=1)
    return {
        "foot_clearance_min_m": float(peaks.min()),
        "foot_clearance_m": peaks.mean(dim=0).tolist(),
        "stance_slip_share": slip_share(walk.clearance, walk.foot_speed),
        "stance_depth_p95_m": stance_depth(walk.clearance),
    }


def describe_motors(
    walk: Walk, targets: Tensor, is_forward: Tensor, speed: float, mass: float
) -> dict[str, float]:
    """Return all robots' peak torque, and the power and jitter of robots walking forward.

    ``is_forward`` (N,) bool marks robots walking forward at ``speed`` [m/s]. ``targets`` (T, N, 12)
    [rad], one for each control step, cover whole gait cycles. ``mass`` [kg] is a robot's.
    """
    torque = walk.torque[:, is_forward]
    joint_vel = walk.joint_vel[:, is_forward]
    return {
        "cost_of_transport": cost_of_transport(torque, joint_vel, mass, speed),
        "peak_torque_nm": float(walk.torque.abs().max()),
        "target_power_above_8hz": fast_power_share(targets[:, is_forward], STEP_DT),
    }
