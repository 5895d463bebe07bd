"""Velocity command to joint targets: what the gait policy sees, what it does, and the frozen policy as a controller."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from mqe.robots.go1 import DEFAULT_JOINT_POS, NUM_JOINTS
from mqe.scene import STEP_DT
from mqe.state import SceneState

GAIT_OBS_SIZE = 3 + 3 + 3 + NUM_JOINTS * 3 + 2
GAIT_FREQUENCY = 2.5  # [Hz] one trot cycle in 20 control steps
STANDING_COMMAND = 0.05  # [m/s, rad/s] below this on every axis the clock stops and the robot stands
ACTION_SCALE = (0.35, 0.6, 0.8)  # [rad] hip, thigh, calf at action 1

ANGVEL_SCALE, COMMAND_SCALE, JOINT_VEL_SCALE = 0.25, 2.0, 0.05  # observations to about unit size


class GaitMemory:
    """What a gait carries from one control step to the next: its clock and its last action."""

    def __init__(self, num_envs: int, num_agents: int, device: torch.device) -> None:
        """Start all clocks at 0."""
        self.phase = torch.zeros(num_envs, num_agents, device=device)  # in [0, 1)
        self.action = torch.zeros(num_envs, num_agents, NUM_JOINTS, device=device)

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask`` (N,)."""
        self.phase.masked_fill_(mask.unsqueeze(1), 0.0)
        self.action.masked_fill_(mask.view(-1, 1, 1), 0.0)

    def observe(self, command: Tensor, state: SceneState) -> Tensor:
        """Give the gait policy's observation (N, A, 47): gravity, turn rates, command, joints, last action, clock."""
        default, _ = _joint_constants(command.device)
        angle = 2.0 * math.pi * self.phase
        clock = torch.stack((torch.sin(angle), torch.cos(angle)), dim=-1) * is_moving(command).unsqueeze(-1)
        return torch.cat(
            (
                gravity_b(state.robot_quat),
                state.robot_angvel_b * ANGVEL_SCALE,
                command * COMMAND_SCALE,
                state.joint_pos - default,
                state.joint_vel * JOINT_VEL_SCALE,
                self.action,
                clock,
            ),
            dim=-1,
        )

    def act(self, action: Tensor, command: Tensor) -> Tensor:
        """Take the policy's action (N, A, 12), advance the clock, and give joint targets (N, A, 12) [rad]."""
        default, scale = _joint_constants(action.device)
        self.action.copy_(action)
        self.phase.copy_((self.phase + GAIT_FREQUENCY * STEP_DT) % 1.0 * is_moving(command))
        return default + scale * action

    def state_dict(self) -> dict[str, Tensor]:
        """The clock and the last action."""
        return {"phase": self.phase.clone(), "action": self.action.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state_dict``."""
        self.phase.copy_(state["phase"])
        self.action.copy_(state["action"])


class GaitController:
    """A frozen gait policy that turns velocity commands into joint targets, one control step at a time."""

    def __init__(
        self, policy: Callable[[Tensor], Tensor], num_envs: int, num_agents: int, device: torch.device
    ) -> None:
        """Drive N x A robots with ``policy``, observation (N, A, 47) to action (N, A, 12)."""
        self._policy = policy
        self._memory = GaitMemory(num_envs, num_agents, device)

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask`` (N,)."""
        self._memory.begin(mask)

    @torch.no_grad()
    def targets(self, command: Tensor, state: SceneState) -> Tensor:
        """Give joint targets (N, A, 12) [rad] for commands (N, A, 3): vx, vy [m/s] in the heading frame, yaw rate."""
        action = self._policy(self._memory.observe(command, state)).clamp(-1.0, 1.0)
        return self._memory.act(action, command)

    def state_dict(self) -> dict[str, Tensor]:
        """What the gait carries between steps."""
        return self._memory.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state_dict``."""
        self._memory.load_state_dict(state)


def gravity_b(quat: Tensor) -> Tensor:
    """Give the direction of gravity in the body frame, (..., 3), from wxyz quaternions (..., 4)."""
    w, x, y, z = quat.unbind(-1)
    return torch.stack((2.0 * (w * y - x * z), -2.0 * (y * z + w * x), 2.0 * (x * x + y * y) - 1.0), dim=-1)


def heading_velocity(state: SceneState) -> Tensor:
    """Give the trunk's velocity (N, A, 3) [m/s] in its heading frame: x forward, y left, z up."""
    sin, cos = torch.sin(state.robot_yaw), torch.cos(state.robot_yaw)
    x, y, z = state.robot_linvel.unbind(-1)
    return torch.stack((cos * x + sin * y, cos * y - sin * x, z), dim=-1)


def is_moving(command: Tensor) -> Tensor:
    """(...,) bool: the command (..., 3) asks for a gait rather than for standing."""
    return command.abs().amax(dim=-1) > STANDING_COMMAND


@cache
def _joint_constants(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.tensor(DEFAULT_JOINT_POS, device=device), torch.tensor(ACTION_SCALE * 4, device=device)
