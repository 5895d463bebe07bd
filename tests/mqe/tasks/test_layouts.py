"""Episode starts: the reference's distribution, and the distribution without spawn collisions."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor, tensor

from mqe.tasks.push.layouts import OBJECT_CLEARANCE, ROBOT_CLEARANCE, PushLayouts, spread_angles
from mqe.world.geometry import roll_pitch_of, rotate_2d, rotation_matrix, yaw_of
from mqe.world.layout import Layout
from mqe.world.objects import OBJECTS, Footprint
from mqe.world.scene import build_scene
from mqe.world.streams import Streams
from tests.support.scenes import DEFAULT_JOINT_POS, team

CPU = torch.device("cpu")


def draw(name: str, num_agents: int, spawn: str, count: int, seed: int = 0) -> Layout:
    layouts = PushLayouts(Footprint(OBJECTS[name]), team(num_agents), spawn, (1.5, 3.0))
    return layouts.draw(Streams(seed, count, CPU), torch.zeros(count, dtype=torch.int64))


def closest_pair(layout: Layout) -> Tensor:
    pos = layout.robot_pos
    distance = (pos.unsqueeze(2) - pos.unsqueeze(1)).norm(dim=-1)
    return (distance + torch.eye(pos.shape[1]) * 100).amin(dim=(1, 2))


def rpy(quat: Tensor) -> Tensor:
    rotation = rotation_matrix(quat)
    return torch.stack((*roll_pitch_of(rotation), yaw_of(rotation)), dim=-1)


def test_spread_angles_by_hand() -> None:
    # Four robots, gaps of 1 rad: 2 pi - 4 = 2.2832 rad are free. Ranks of (0.5, 0.25, 0.5): 1, 0, 2
    # (ties by index).
    free = 2 * math.pi - 4.0
    draw = tensor([[0.2 * math.pi, 0.5 * free, 0.25 * free, 0.5 * free]])
    angle = spread_angles(draw, 1.0) - 0.2 * math.pi
    torch.testing.assert_close(
        angle, tensor([[0.0, 2.0 + 1.141593, 1.0 + 0.570796, 3.0 + 1.141593]])
    )
    # The last one stays a gap away from the first, which is one turn further.
    latest = spread_angles(tensor([[0.0, 2 * math.pi - 6.0, 2 * math.pi - 6.0]]), 2.0).max()
    assert latest == pytest.approx(2 * math.pi - 2.0)
    assert spread_angles(tensor([[1.5]]), 2.0).item() == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("name", "num_agents"), [("cuboid", 2), ("cuboid", 4), ("tblock", 4), ("cylinder", 4)]
)
def test_separated_robots_are_never_close(name: str, num_agents: int) -> None:
    layout = draw(name, num_agents, "separated", 40_000)
    assert closest_pair(layout).min() > ROBOT_CLEARANCE - 1e-4
    local = rotate_2d(layout.robot_pos[..., :2], -rpy(layout.object_quat)[:, 2:])
    assert Footprint(OBJECTS[name]).distance(local).min() > OBJECT_CLEARANCE - 1e-4
    assert layout.robot_pos[..., :2].norm(dim=-1).max() < OBJECTS[name].spawn_ring[1] + 0.15


@pytest.mark.parametrize(("name", "num_agents"), [("cuboid", 4), ("tblock", 3), ("cylinder", 4)])
def test_separated_scenes_touch_nothing(name: str, num_agents: int) -> None:
    layout = draw(name, num_agents, "separated", 200)
    robots = torch.cat((layout.robot_pos, layout.robot_quat, layout.joint_pos), dim=-1).flatten(1)
    worlds = torch.cat((robots, layout.object_pos, layout.object_quat), dim=-1).double().numpy()
    model = build_scene(num_agents, OBJECTS[name]).model
    data = mujoco.MjData(model)
    for qpos in worlds:
        data.qpos[:] = qpos
        mujoco.mj_fwdPosition(model, data)
        assert data.ncon == 0


@pytest.mark.parametrize(
    ("name", "expected"), [("cuboid", 0.063), ("tblock", 0.068), ("cylinder", 0.065)]
)
def test_independent_spawns_collide_as_often_as_the_references(name: str, expected: float) -> None:
    cfg = OBJECTS[name]
    is_lost = (
        closest_pair(draw(name, cfg.num_agents, "independent", 100_000)) < cfg.collision_distance
    )
    assert is_lost.float().mean().item() == pytest.approx(expected, abs=0.003)


@pytest.mark.parametrize("spawn", ["independent", "separated"])
def test_ranges(spawn: str) -> None:
    layout = draw("cuboid", 2, spawn, 20_000)
    torch.testing.assert_close(layout.robot_pos[..., 2], torch.full((20_000, 2), 0.43))
    torch.testing.assert_close(layout.object_pos[0], tensor([0.0, 0.0, 0.28]))
    for values, low, high in (
        (layout.goal_pos[:, :2].norm(dim=-1), 1.5, 3.0),
        (layout.robot_pos[..., :2].norm(dim=-1), 1.2, 1.3 if spawn == "independent" else 1.38),
        (layout.robot_vel, -0.1, 0.1),
        (layout.joint_pos / tensor(DEFAULT_JOINT_POS), 0.7, 1.3),
        (rpy(layout.robot_quat)[..., :2], -0.01, 0.01),
        (rpy(layout.object_quat)[..., :2], -0.01, 0.01),
    ):
        assert low - 1e-5 <= values.min() < low + 0.02 * (high - low)
        assert high - 0.03 * (high - low) < values.max() <= high + 1e-5
    bearing = torch.atan2(layout.robot_pos[..., 1], layout.robot_pos[..., 0])
    for angle in (
        bearing[:, 0],
        bearing[:, 1],
        rpy(layout.robot_quat)[:, 1, 2],
        rpy(layout.object_quat)[:, 2],
    ):
        quadrants = np.histogram(angle.numpy(), 4, (-math.pi, math.pi))[0] / 20_000
        np.testing.assert_allclose(quadrants, 0.25, atol=0.015)


def test_separated_robots_are_interchangeable() -> None:
    # Who is next to whom must not depend on the number: robot 1 is as often ahead of robot 2 as
    # behind it.
    pos = draw("cylinder", 3, "separated", 20_000).robot_pos
    angle = torch.atan2(pos[..., 1], pos[..., 0])
    ahead = torch.remainder(angle[:, 1:] - angle[:, :1], 2 * math.pi)
    assert (ahead[:, 0] < ahead[:, 1]).float().mean().item() == pytest.approx(0.5, abs=0.015)


def test_a_layout_depends_on_its_episode_and_world_only() -> None:
    layouts = PushLayouts(Footprint(OBJECTS["cuboid"]), team(2), "separated", (1.5, 3.0))
    few = layouts.draw(Streams(7, 3, CPU), tensor([5, 0, 2]))
    many = layouts.draw(Streams(7, 8, CPU), tensor([5, 1, 2, 0, 0, 0, 0, 0]))
    torch.testing.assert_close(few.robot_pos[[0, 2]], many.robot_pos[[0, 2]], rtol=0, atol=0)
    assert not torch.equal(few.robot_pos[1], many.robot_pos[1])
