"""A box slides into obstacles, on any simulator."""

from __future__ import annotations

import math

import torch
from torch import tensor

from mqe.sim.simulator import Simulator
from mqe.world.geometry import quat_from_yaw
from mqe.world.layout import Layout
from mqe.world.objects import OBJECTS
from mqe.world.obstacles import PARKED_HEIGHT, ObstacleCfg
from mqe.world.scene import (
    Scene,
    build_scene,
    pack_layout,
    read_state,
    turn_obstacles,
)
from tests.support.scenes import team

CUBE = ObstacleCfg("box", (1.0, 1.0, 0.6))
WALL = ObstacleCfg("box", (3.0, 0.2, 0.6))
POST = ObstacleCfg("post", (0.15, 0.6))
NUM_ENVS = 4


def obstacle_scene() -> Scene:
    return build_scene(1, OBJECTS["cuboid"], obstacles=(CUBE, WALL, POST), has_marker=True)


def layout() -> Layout:
    """A box slides ahead: into free space, a cube, a wall across its path, and a post."""
    away = [9.0, 9.0, PARKED_HEIGHT]
    pos = tensor(
        [
            [away, away, away],
            [[1.4, 0.0, 0.3], away, away],
            [away, [1.4, 0.0, 0.3], away],
            [away, away, [1.4, 0.0, 0.3]],
        ]
    )
    yaw = torch.zeros(NUM_ENVS, 3)
    yaw[2, 1] = math.pi / 2
    upright = tensor([1.0, 0.0, 0.0, 0.0])
    return Layout(
        robot_pos=tensor([-3.0, 0.0, 0.35]).expand(NUM_ENVS, 1, 3),
        robot_quat=upright.expand(NUM_ENVS, 1, 4),
        robot_vel=torch.zeros(NUM_ENVS, 1, 6),
        joint_pos=team(1).joint_pos.expand(NUM_ENVS, 1, -1),
        object_pos=tensor([0.0, 0.0, 0.25]).expand(NUM_ENVS, 3),
        object_quat=upright.expand(NUM_ENVS, 4),
        goal_pos=tensor([3.0, 0.0, 0.0]).expand(NUM_ENVS, 3),
        obstacle_pos=pos,
        obstacle_quat=quat_from_yaw(yaw),
    )


def slide(sim: Simulator, scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
    """Let the box slide at 3 m/s. Return its furthest position (N,) and a contact mask (N,)."""
    everywhere = torch.ones(NUM_ENVS, dtype=torch.bool)
    start = layout()
    sim.write(everywhere, *pack_layout(scene, start))
    turn_obstacles(sim, scene, start, everywhere)
    sim.data.qvel[:, scene.robot_qvel] = 3.0
    sim.data.ctrl[:] = team(1).joint_pos.flatten()
    furthest = torch.zeros(NUM_ENVS)
    touched = torch.zeros(NUM_ENVS, dtype=torch.bool)
    for _ in range(20):
        sim.step(4)
        state = read_state(sim, scene)
        furthest = torch.maximum(furthest, state.object_pos[:, 0])
        contacts = state.obstacle_contacts
        assert torch.equal(contacts[..., 0], contacts[..., 1])  # no robot is near
        touched |= (contacts[..., 1] > 0.0).any(dim=1)
    torch.testing.assert_close(state.obstacle_pos, start.obstacle_pos)
    torch.testing.assert_close(state.obstacle_quat, start.obstacle_quat)
    return furthest, touched
