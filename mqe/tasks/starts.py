"""Poses in which a gait's training begins: on its feet, dropped as the push task drops robots, or crumpled up."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mqe.collapse import trunk_boxes
from mqe.geometry import quat_from_rpy, rotation_matrix
from mqe.robots.go1 import (
    DEFAULT_JOINT_POS,
    FOOT_RADIUS,
    JOINT_RANGE,
    LEG_JOINTS,
    STANDING_HEIGHT,
    foot_positions,
    knee_positions,
)
from mqe.tasks.layouts import JOINT_SCATTER, SPAWN_HEIGHT, VELOCITY

NUM_POSES = 4096  # a table that episodes draw from
STANDING_SHARE, DROPPED_SHARE = 0.3, 0.35  # of the poses; the others are crumpled
STANDING_SCATTER = (0.8, 1.2)  # times the nominal angle
CRUMPLED_TILT = 0.6  # [rad] largest roll and pitch
KNEE_RADIUS = 0.021  # [m] a thigh's corners around the knee joint
_CLEARANCE = 0.005  # [m] between the lowest point and the floor


class Poses(NamedTuple):
    """P poses of one robot."""

    tilt: Tensor  # (P, 2) [rad] roll and pitch
    height: Tensor  # (P, 1) [m] trunk origin above the floor
    velocity: Tensor  # (P, 6) [m/s] world, [rad/s] body
    joint_pos: Tensor  # (P, 12) [rad]


def start_poses(device: torch.device, num_poses: int = NUM_POSES) -> Poses:
    """Draw the table of poses, the same one on every device."""
    generator = torch.Generator().manual_seed(0)

    def between(low: float | Tensor, high: float | Tensor, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(num_poses, *shape, generator=generator)

    nominal = torch.tensor(DEFAULT_JOINT_POS)
    kind = torch.arange(num_poses).unsqueeze(1) / num_poses
    is_standing, is_dropped = kind < STANDING_SHARE, kind >= 1.0 - DROPPED_SHARE
    low, high = (torch.tensor([JOINT_RANGE[joint][k] for joint in LEG_JOINTS] * 4) for k in (0, 1))
    low = low.clamp(min=torch.tensor([-0.6, -0.4, -2.65] * 4))
    high = high.clamp(max=torch.tensor([0.6, 2.4, -0.95] * 4))
    crumpled, folded = between(low, high, 12), between(0.0, 1.0, 1)
    joints = torch.lerp(nominal, crumpled, folded.sqrt())
    tilt = CRUMPLED_TILT * between(-1.0, 1.0, 2)
    height = _lowest(tilt, joints) + _CLEARANCE
    standing = nominal * between(*STANDING_SCATTER, 12)
    dropped = nominal * between(*JOINT_SCATTER, 12)
    joints = torch.where(is_standing, standing, torch.where(is_dropped, dropped, joints))
    tilt = torch.where(is_standing | is_dropped, 0.01 * between(-1.0, 1.0, 2), tilt)
    height = torch.where(is_standing, STANDING_HEIGHT + 0.03, torch.where(is_dropped, SPAWN_HEIGHT, height))
    velocity = torch.where(is_dropped, between(*VELOCITY, 6), 0.0)
    return Poses(*(part.to(device) for part in (tilt, height, velocity, joints)))


def _lowest(tilt: Tensor, joints: Tensor) -> Tensor:
    """Return how far the lowest point of a robot lies below its trunk's origin, (P, 1) [m]."""
    up = rotation_matrix(quat_from_rpy(torch.nn.functional.pad(tilt, (0, 1))))[:, 2]
    points = torch.cat((foot_positions(joints), knee_positions(joints)), dim=1)
    radius = torch.tensor([FOOT_RADIUS] * 4 + [KNEE_RADIUS] * 4)
    legs = ((points * up.unsqueeze(1)).sum(dim=-1) - radius).amin(dim=1)
    half_sizes, centers = trunk_boxes(up.device, up.dtype)
    trunk = (up @ centers - up.abs() @ half_sizes).amin(dim=1)
    return -torch.minimum(legs, trunk).unsqueeze(1)
