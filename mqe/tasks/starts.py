"""Poses in which a gait's training begins: standing, dropped, crumpled, kneeling, or leaning against a wall."""

from __future__ import annotations

import math
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
    LINK_LENGTH,
    STANDING_HEIGHT,
    foot_positions,
    knee_positions,
)
from mqe.scene import ARENA_HALF_SIZE
from mqe.tasks.layouts import JOINT_SCATTER, SPAWN_HEIGHT, VELOCITY

NUM_POSES = 4096  # a table that episodes draw from
# Shares of the poses; the others are crumpled.
STANDING_SHARE, DROPPED_SHARE, KNEELING_SHARE, LEANING_SHARE = 0.25, 0.3, 0.2, 0.07
STANDING_SCATTER = (0.8, 1.2)  # times the nominal angle
CRUMPLED_TILT = 0.6  # [rad] largest roll and pitch
KNEELING_HEIGHT = (0.165, 0.215)  # [m] trunk origin of a robot that rests on knees
KNEELING_CHANCE = 0.4  # of each leg; one leg always kneels
KNEELING_SLACK = 0.02  # [m] that the feet of its other legs are off the floor
LEANING_TILT = (0.2, 0.8)  # [rad] of a robot whose trunk has come to rest against a wall
KNEE_RADIUS = 0.021  # [m] a thigh's corners around the knee joint
_CLEARANCE = 0.005  # [m] between the lowest point and the floor


class Poses(NamedTuple):
    """P poses of one robot."""

    tilt: Tensor  # (P, 2) [rad] roll and pitch
    yaw: Tensor  # (P, 1) [rad]
    pos: Tensor  # (P, 3) [m] trunk origin
    velocity: Tensor  # (P, 6) [m/s] world, [rad/s] body
    joint_pos: Tensor  # (P, 12) [rad]


def start_poses(device: torch.device, num_poses: int = NUM_POSES) -> Poses:
    """Draw the table of poses, the same one on every device.

    Robots that lean do so against the wall at positive x, which is as high as a box.
    """
    generator = torch.Generator().manual_seed(0)

    def between(low: float | Tensor, high: float | Tensor, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(num_poses, *shape, generator=generator)

    nominal = torch.tensor(DEFAULT_JOINT_POS)
    bounds = torch.tensor([STANDING_SHARE, DROPPED_SHARE, KNEELING_SHARE, LEANING_SHARE]).cumsum(dim=0)
    kind = (torch.arange(num_poses).unsqueeze(1) / num_poses >= bounds).sum(dim=1, keepdim=True)
    is_standing, is_dropped, is_kneeling, is_leaning = (kind == k for k in range(4))

    low, high = (torch.tensor([JOINT_RANGE[joint][k] for joint in LEG_JOINTS] * 4) for k in (0, 1))
    low = low.clamp(min=torch.tensor([-0.6, -0.4, -2.65] * 4))
    high = high.clamp(max=torch.tensor([0.6, 2.4, -0.95] * 4))
    crumpled, folded = between(low, high, 12), between(0.0, 1.0, 1)
    joints = torch.lerp(nominal, crumpled, folded.sqrt())
    joints = torch.where(is_standing, nominal * between(*STANDING_SCATTER, 12), joints)
    joints = torch.where(is_dropped, nominal * between(*JOINT_SCATTER, 12), joints)
    kneels = between(0.0, 1.0, 4) < KNEELING_CHANCE
    kneels[torch.arange(num_poses), between(0.0, 4.0).to(torch.int64)] = True
    kneeling = _kneeling(between(*KNEELING_HEIGHT, 1), kneels, between(-0.05, 0.05, 12))
    joints = torch.where(is_kneeling, kneeling.clamp(low, high), joints)

    yaw = between(-math.pi, math.pi, 1)
    lean = between(*LEANING_TILT, 1) * torch.cat((yaw.sin(), yaw.cos()), dim=1)  # roll and pitch: towards positive x
    tilt = torch.where(is_leaning, lean, CRUMPLED_TILT * between(-1.0, 1.0, 2))
    tilt = torch.where(is_standing | is_dropped, 0.01 * between(-1.0, 1.0, 2), tilt)
    tilt = torch.where(is_kneeling, 0.05 * between(-1.0, 1.0, 2), tilt)

    lowest, foremost = _extents(tilt, yaw, joints)
    height = _CLEARANCE - lowest
    height = torch.where(is_standing, STANDING_HEIGHT + 0.03, torch.where(is_dropped, SPAWN_HEIGHT, height))
    x = torch.where(is_leaning, ARENA_HALF_SIZE - _CLEARANCE - foremost, 0.0)
    velocity = torch.where(is_dropped, between(*VELOCITY, 6), 0.0)
    poses = (tilt, yaw, torch.cat((x, torch.zeros_like(x), height), dim=1), velocity, joints)
    return Poses(*(part.to(device) for part in poses))


def _kneeling(height: Tensor, kneels: Tensor, scatter: Tensor) -> Tensor:
    """Return joints (P, 12) of level robots at ``height`` (P, 1) [m] with some legs (P, 4) on their knees.

    A leg that kneels has its knee on the floor and its calf along it; another has its foot below its hip.
    """
    knee = torch.acos((height - KNEE_RADIUS) / LINK_LENGTH)
    foot = torch.acos((height - FOOT_RADIUS - KNEELING_SLACK) / (2.0 * LINK_LENGTH))
    thigh = torch.where(kneels, knee, foot)
    calf = torch.where(kneels, -math.pi / 2 - knee, -2.0 * foot)
    return torch.stack((torch.zeros_like(thigh), thigh, calf), dim=-1).flatten(1) + scatter


def _extents(tilt: Tensor, yaw: Tensor, joints: Tensor) -> tuple[Tensor, Tensor]:
    """Return a robot's lowest point, and its trunk's foremost along x, from the trunk's origin, (P, 1) [m] each."""
    rotation = rotation_matrix(quat_from_rpy(torch.cat((tilt, yaw), dim=1)))
    ahead, up = rotation[:, 0], rotation[:, 2]
    points = torch.cat((foot_positions(joints), knee_positions(joints)), dim=1)
    radius = torch.tensor([FOOT_RADIUS] * 4 + [KNEE_RADIUS] * 4)
    legs = ((points * up.unsqueeze(1)).sum(dim=-1) - radius).amin(dim=1)
    half_sizes, centers = trunk_boxes(up.device, up.dtype)
    trunk = (up @ centers - up.abs() @ half_sizes).amin(dim=1)
    foremost = (ahead @ centers + ahead.abs() @ half_sizes).amax(dim=1)
    return torch.minimum(legs, trunk).unsqueeze(1), foremost.unsqueeze(1)
