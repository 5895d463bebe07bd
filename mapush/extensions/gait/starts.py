"""Initial poses for gait training: standing, dropped, crumpled, kneeling, or leaning against a
wall.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mapush.extensions.gait.leg_motion import WalkingRobots
from mqe.tasks.drop import JOINT_SCATTER, VELOCITY, spawn_height
from mqe.world.geometry import quat_from_rpy, rotation_matrix
from mqe.world.robots import NUM_JOINTS, RobotCfg, Robots
from mqe.world.scene import ARENA_HALF_SIZE

NUM_POSES = 4096  # a table that episodes draw from
# Shares of the poses; the others are crumpled.
STANDING_SHARE = 0.25
DROPPED_SHARE = 0.3
KNEELING_SHARE = 0.2
LEANING_SHARE = 0.07
STANDING_SCATTER = (0.8, 1.2)  # times the nominal angle
CRUMPLED_TILT = 0.6  # [rad] largest roll and pitch
# [m] trunk origin of a robot that rests on knees, with the Go1's thighs
KNEELING_HEIGHT = (0.165, 0.215)
_GO1_THIGH = 0.213  # [m]
KNEELING_CHANCE = 0.4  # of each leg; one leg always kneels
KNEELING_SLACK = 0.02  # [m] that the feet of its other legs are off the floor
LEANING_TILT = (0.2, 0.8)  # [rad] of a robot whose trunk has come to rest against a wall
_CLEARANCE = 0.005  # [m] between the lowest point and the floor


class Poses(NamedTuple):
    """A table of P initial poses for one robot."""

    tilt: Tensor  # (P, 2) [rad] roll and pitch
    yaw: Tensor  # (P, 1) [rad]
    pos: Tensor  # (P, 3) [m] trunk origin
    velocity: Tensor  # (P, 6) [m/s] world, [rad/s] body
    joint_pos: Tensor  # (P, J) [rad]


def start_poses(robots: Robots, num_poses: int = NUM_POSES) -> Poses:
    """Draw a single robot's table of poses, equal on every device.

    Leaning robots lean against the wall at positive x, as high as a box.
    """
    generator = torch.Generator().manual_seed(0)

    def between(low: float | Tensor, high: float | Tensor, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(num_poses, *shape, generator=generator)

    device = robots.device
    walking = WalkingRobots(robots.cfgs)
    robot = robots.cfgs[0]
    nominal = walking.joint_pos
    drop_height = spawn_height(robot)
    bounds = torch.tensor([STANDING_SHARE, DROPPED_SHARE, KNEELING_SHARE, LEANING_SHARE]).cumsum(
        dim=0
    )
    kind = (torch.arange(num_poses).unsqueeze(1) / num_poses >= bounds).sum(dim=1, keepdim=True)
    is_standing, is_dropped, is_kneeling, is_leaning = (kind == k for k in range(4))

    low, high = torch.tensor(robot.joint_range).unbind(dim=1)
    low = low.clamp(min=torch.tensor([-0.6, -0.4, -2.65] * 4))
    high = high.clamp(max=torch.tensor([0.6, 2.4, -0.95] * 4))
    crumpled = between(low, high, NUM_JOINTS)
    folded = between(0.0, 1.0, 1)
    joints = torch.lerp(nominal, crumpled, folded.sqrt())
    joints = torch.where(is_standing, nominal * between(*STANDING_SCATTER, NUM_JOINTS), joints)
    joints = torch.where(is_dropped, nominal * between(*JOINT_SCATTER, NUM_JOINTS), joints)
    kneels = between(0.0, 1.0, 4) < KNEELING_CHANCE
    kneels[torch.arange(num_poses), between(0.0, 4.0).to(torch.int64)] = True
    height = between(*KNEELING_HEIGHT, 1) * (robot.link_lengths[0] / _GO1_THIGH)
    kneeling = _kneeling(robot, height, kneels, between(-0.05, 0.05, NUM_JOINTS))
    joints = torch.where(is_kneeling, kneeling.clamp(low, high), joints)

    yaw = between(-math.pi, math.pi, 1)
    # Roll and pitch: towards positive x.
    lean = between(*LEANING_TILT, 1) * torch.cat((yaw.sin(), yaw.cos()), dim=1)
    tilt = torch.where(is_leaning, lean, CRUMPLED_TILT * between(-1.0, 1.0, 2))
    tilt = torch.where(is_standing | is_dropped, 0.01 * between(-1.0, 1.0, 2), tilt)
    tilt = torch.where(is_kneeling, 0.05 * between(-1.0, 1.0, 2), tilt)

    rotation = rotation_matrix(quat_from_rpy(torch.cat((tilt, yaw), dim=1)))
    foremost = walking.trunk_reach(rotation[:, 0]).unsqueeze(1)
    height = _CLEARANCE - walking.lowest(rotation[:, 2], joints).unsqueeze(1)
    height = torch.where(
        is_standing, robot.standing_height + 0.03, torch.where(is_dropped, drop_height, height)
    )
    x = torch.where(is_leaning, ARENA_HALF_SIZE - _CLEARANCE - foremost, 0.0)
    velocity = torch.where(is_dropped, between(*VELOCITY, 6), 0.0)
    poses = (tilt, yaw, torch.cat((x, torch.zeros_like(x), height), dim=1), velocity, joints)
    return Poses(*(part.to(device) for part in poses))


def _kneeling(robot: RobotCfg, height: Tensor, kneels: Tensor, scatter: Tensor) -> Tensor:
    """Return joints (P, J) for level robots at ``height`` (P, 1) [m] with some legs (P, 4) on their
    knees.

    A kneeling leg has its knee and its calf on the floor. Another leg has its foot below its hip.
    """
    thigh_length, calf_length = robot.link_lengths
    # A leg that is too long or too short for its triangle is straight or folded.
    knee = torch.acos(((height - robot.knee_radius) / thigh_length).clamp(-1.0, 1.0))
    # The triangle of hip, knee and foot
    drop = height - robot.foot_radius - KNEELING_SLACK
    surplus = (thigh_length**2 - calf_length**2) / drop
    at_hip = torch.acos(((drop + surplus) / (2.0 * thigh_length)).clamp(-1.0, 1.0))
    at_foot = torch.acos(((drop - surplus) / (2.0 * calf_length)).clamp(-1.0, 1.0))
    thigh = torch.where(kneels, knee, at_hip)
    calf = torch.where(kneels, -math.pi / 2 - knee, -(at_hip + at_foot))
    return torch.stack((torch.zeros_like(thigh), thigh, calf), dim=-1).flatten(1) + scatter
