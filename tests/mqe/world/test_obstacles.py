"""Obstacles are solid, turned and parked as a layout says."""

from __future__ import annotations

import pytest
import torch

from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.world.objects import OBJECTS
from mqe.world.obstacles import ObstacleCfg
from mqe.world.scene import Scene, build_scene, read_state
from tests.support.obstacles import NUM_ENVS, obstacle_scene, slide


@pytest.fixture(scope="module")
def scene() -> Scene:
    return obstacle_scene()


def test_an_object_stops_at_an_obstacle(scene):
    sim = MujocoBatchSimulator(scene.model, NUM_ENVS, 1)
    furthest, touched = slide(sim, scene)
    assert touched.tolist() == [False, True, True, True]
    assert furthest[0] > 0.9
    # Half a box from the obstacle's face, give or take the contact's softness.
    assert furthest[1:].tolist() == pytest.approx([0.3, 0.7, 0.65], abs=0.02)


def test_a_scene_is_restored_with_its_obstacles(scene):
    sim = MujocoBatchSimulator(scene.model, NUM_ENVS, 1)
    slide(sim, scene)
    other = MujocoBatchSimulator(scene.model, NUM_ENVS, 1)
    other.load_state_dict(sim.state_dict())
    assert torch.equal(read_state(other, scene).obstacle_quat, read_state(sim, scene).obstacle_quat)
    plain = build_scene(1, OBJECTS["cuboid"])
    assert "mocap_quat" not in MujocoBatchSimulator(plain.model, 1, 1).state_dict()


def test_half_the_size_of_a_post_is_its_radius_and_of_a_box_half_its_sides() -> None:
    assert ObstacleCfg("post", (0.3, 1.0)).half_size == (0.3, 0.3)
    assert ObstacleCfg("box", (0.4, 2.0, 1.0)).half_size == (0.2, 1.0)
