"""Start poses in gait training: contacts with floor and wall for each kind."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from mapush.extensions.gait.leg_motion import WalkingRobots
from mapush.extensions.gait.starts import (
    CRUMPLED_TILT,
    DROPPED_SHARE,
    KNEELING_SHARE,
    KNEELING_SLACK,
    LEANING_SHARE,
    STANDING_SHARE,
    Poses,
    _kneeling,
    start_poses,
)
from mqe.world.geometry import quat_from_rpy, rotation_matrix
from mqe.world.robots import ROBOTS, RobotCfg, Robots
from mqe.world.scene import ARENA_HALF_SIZE
from tests.support.rounding import FEW_STEPS
from tests.support.scenes import GO1, team

POSES = start_poses(team(1))
BOUNDS = torch.tensor([0.0, STANDING_SHARE, DROPPED_SHARE, KNEELING_SHARE, LEANING_SHARE]).cumsum(
    dim=0
)
STANDING, DROPPED, KNEELING, LEANING = (
    slice(math.ceil(low * 4096), math.floor(high * 4096))
    for low, high in zip(BOUNDS, BOUNDS[1:], strict=False)
)
CRUMPLED = slice(LEANING.stop + 1, 4096)


def rotation(poses: Poses) -> torch.Tensor:
    return rotation_matrix(quat_from_rpy(torch.cat((poses.tilt, poses.yaw), dim=1)))


def heights(poses: Poses, points_b: torch.Tensor, radius: float) -> torch.Tensor:
    up = rotation(poses)[:, 2]
    return (points_b * up.unsqueeze(1)).sum(dim=-1) + poses.pos[:, 2:] - radius


def trunk_reach(cfg: RobotCfg, direction: torch.Tensor) -> torch.Tensor:
    """Return how far the trunk's corners and balls are along ``direction`` (P, 3) of its frame,
    (P,).
    """
    reach = []
    for shape in cfg.trunk_shapes:
        center = torch.tensor(shape.pos)
        is_box = shape.type == "box"
        if is_box:
            corners = [
                torch.tensor(c) for c in itertools.product(*((-half, half) for half in shape.size))
            ]
        else:
            corners = []
        points = torch.stack([center + corner for corner in corners] or [center])
        reach.append((direction @ points.t()).amax(dim=1) + (0.0 if is_box else shape.size[0]))
    return torch.stack(reach).amax(dim=0)


@pytest.mark.parametrize("name", ROBOTS)
def test_robots_on_the_floor_touch_it_and_do_not_sink_in(name: str) -> None:
    cfg = ROBOTS[name]
    robots = WalkingRobots([cfg])
    on_floor = Poses(*(part[KNEELING.start :] for part in start_poses(robots)))
    feet = heights(on_floor, robots.feet(on_floor.joint_pos), cfg.foot_radius)
    knees = heights(on_floor, robots.knees(on_floor.joint_pos), cfg.knee_radius)
    legs = torch.cat((feet, knees), dim=1).amin(dim=1)
    trunk = on_floor.pos[:, 2] - trunk_reach(cfg, -rotation(on_floor)[:, 2])
    torch.testing.assert_close(
        torch.minimum(legs, trunk), torch.full((len(legs),), 0.005), atol=1e-5, rtol=0.0
    )


def test_kneeling_robots_have_a_knee_at_the_floor_and_a_low_trunk() -> None:
    knees = heights(POSES, team(1).knees(POSES.joint_pos), GO1.knee_radius).amin(dim=1)
    assert (knees[KNEELING] < 0.02).float().mean().item() > 0.8
    assert POSES.pos[KNEELING, 2].max().item() < 0.25
    assert (knees[STANDING] > 0.05).all()


@pytest.mark.parametrize("name", ROBOTS)
def test_leaning_robots_touch_the_wall_tilted_towards_it(name: str) -> None:
    leaning = Poses(*(part[LEANING] for part in start_poses(Robots([ROBOTS[name]]))))
    matrix = rotation(leaning)
    foremost = trunk_reach(ROBOTS[name], matrix[:, 0]) + leaning.pos[:, 0]
    torch.testing.assert_close(
        foremost, torch.full_like(foremost, ARENA_HALF_SIZE - 0.005), atol=1e-5, rtol=0.0
    )
    towards_wall = matrix[:, 0, 2]  # the trunk's up axis, along x
    assert (towards_wall > 0.1).all()
    assert towards_wall.max().item() == pytest.approx(math.sin(0.8), abs=0.06)
    assert not POSES.pos[: LEANING.start, :2].any()
    assert not POSES.pos[CRUMPLED, :2].any()


def test_every_kind_of_pose_faces_everywhere() -> None:
    for kind in (STANDING, DROPPED, KNEELING, LEANING, CRUMPLED):
        direction = torch.stack((POSES.yaw[kind].sin(), POSES.yaw[kind].cos())).mean(dim=1)
        assert direction.abs().max().item() < 0.12


def test_standing_robots_have_joints_within_a_fifth_of_the_nominal_ones() -> None:
    share = POSES.joint_pos[STANDING] / torch.tensor(GO1.joint_pos)
    assert 0.8 <= float(share.min()) < 0.801
    assert 1.199 < float(share.max()) <= 1.2


@pytest.mark.parametrize(
    ("kind", "most"),
    [(STANDING, 0.01), (DROPPED, 0.01), (KNEELING, 0.05), (CRUMPLED, CRUMPLED_TILT)],
)
def test_robots_roll_and_pitch_to_either_side(kind: slice, most: float) -> None:
    for turned in POSES.tilt[kind].unbind(dim=1):
        assert -most <= float(turned.min()) < -0.99 * most
        assert 0.99 * most < float(turned.max()) <= most


def test_a_leg_kneels_with_its_calf_along_the_floor_or_has_its_foot_below_its_hip() -> None:
    robots = WalkingRobots([GO1])
    height = 0.19
    joints = _kneeling(
        GO1,
        torch.tensor([[height]]),
        torch.tensor([[True, False, False, True]]),
        torch.zeros(1, 12),
    )
    feet = robots.feet(joints)[0]
    knees = robots.knees(joints)[0]
    hips = robots.feet(torch.zeros(12))
    assert (knees[[0, 3], 2] + height).tolist() == pytest.approx(
        [GO1.knee_radius] * 2, abs=FEW_STEPS
    )
    assert feet[[0, 3], 2].tolist() == pytest.approx(knees[[0, 3], 2].tolist(), abs=FEW_STEPS)
    assert (feet[[1, 2], 2] + height).tolist() == pytest.approx(
        [GO1.foot_radius + KNEELING_SLACK] * 2, abs=FEW_STEPS
    )
    assert feet[[1, 2], 0].tolist() == pytest.approx(hips[[1, 2], 0].tolist(), abs=FEW_STEPS)
