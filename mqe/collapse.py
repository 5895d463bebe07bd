"""Collapse of a robot: a trunk that stays low, or a knee, thigh or trunk that stays on the floor."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from mqe.robots.go1 import HEAD_HALF_SIZE, HEAD_POS, TRUNK_HALF_SIZE, knee_positions
from mqe.scene import STEP_DT
from mqe.state import SceneState

LOW_HEIGHT = 0.215  # [m] a trunk origin below this is low: a Go1 walks at 0.26 to 0.30 m, and at 0.20 m on one knee
LOW_TIME = 0.6  # [s] without interruption until a low trunk is a collapse
KNEE_CLEARANCE = 0.025  # [m] knee joint above the floor: a thigh's corners reach 0.021 m from it
TRUNK_CLEARANCE = 0.004  # [m] lowest corner of trunk or head above the floor
REST_TIME = 0.3  # [s] without interruption until a knee, thigh or trunk on the floor is a collapse


def rests_on_floor(state: SceneState) -> Tensor:
    """Return where a knee, thigh or trunk touches the floor, (N, A) bool, from the robots' kinematics."""
    up, height = state.up_b, state.robot_pos[..., 2]
    knees = (knee_positions(state.joint_pos) * up.unsqueeze(-2)).sum(dim=-1).amin(dim=-1)
    half_sizes, heads = trunk_boxes(up.device, up.dtype)
    trunk = torch.matmul(up, heads) - torch.matmul(up.abs(), half_sizes)  # (N, A, 2) lowest corners of both boxes
    lowest = torch.minimum(knees - KNEE_CLEARANCE, trunk.amin(dim=-1) - TRUNK_CLEARANCE)
    return lowest + height < 0.0


class CollapseTimers:
    """How long each robot has been low, and how long it has rested on more than its feet."""

    SIZE = 2  # numbers a robot

    def __init__(self, values: Tensor) -> None:
        """Live in ``values`` (N, A, 2) [s]; zeros are a robot that stands."""
        self.values = values
        limits = torch.tensor([LOW_TIME, REST_TIME], device=values.device)
        self._limits = limits - 0.5 * STEP_DT  # sums of steps fall short of whole seconds by rounding

    def begin(self, mask: Tensor, grace: float = 0.0) -> None:
        """Forget the old episodes of ``mask`` (N,); timers count from ``grace`` [s] after the start."""
        self.values.masked_fill_(mask.view(-1, 1, 1), -grace)

    def update(self, state: SceneState) -> None:
        """Count one control step that ended in ``state``; who is up starts from zero, once its grace is over."""
        is_down = torch.stack((state.robot_pos[..., 2] < LOW_HEIGHT, rests_on_floor(state)), dim=-1)
        self.values.add_(STEP_DT).mul_(is_down | (self.values < 0.0))

    @property
    def collapsed(self) -> Tensor:
        """(N, A) bool: the robot has been low, or on the floor, for too long."""
        return (self.values > self._limits).any(dim=-1)


@cache
def trunk_boxes(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return half sizes (3, 2) and centres (3, 2) [m] of trunk and head in the trunk frame, a column each."""
    half_sizes = torch.tensor([TRUNK_HALF_SIZE, HEAD_HALF_SIZE], dtype=dtype, device=device)
    centers = torch.tensor([(0.0, 0.0, 0.0), HEAD_POS], dtype=dtype, device=device)
    return half_sizes.t().contiguous(), centers.t().contiguous()
