"""Slopes: gravity is tilted in every world, and robots measure it."""

import math

import pytest
import torch

from mqe.controllers.trot import GaitMemory, Trot, is_moving
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg
from mqe.world.randomization import RandomizationCfg
from mqe.world.robots import Robots, robots_of
from mqe.world.scene import GRAVITY, sliding_forces
from mqe.world.state import SceneState

SLOPE = math.radians(5.0)


def sloping(num_envs: int = 3, sim: str = "mujoco", **randomize):
    randomization = RandomizationCfg(**{"slope": SLOPE, **randomize})
    return make_env(
        EnvCfg(num_envs, 2, randomize=randomization),
        SimCfg(name=sim, device="cpu", num_threads=1),
        PushCfg(),
        seed=3,
    )


@pytest.mark.parametrize("sim", ["mujoco", pytest.param("warp", marks=pytest.mark.slow)])
def test_a_box_on_ice_slides_downhill_with_g_sin_a(sim):
    if sim == "warp":
        pytest.importorskip("mujoco_warp")
    env = sloping(2, sim, object_friction=1e-3, ground_friction=1e-3)
    env.reset()
    env.sim.step(20)
    before = env.sim.data.qvel[:, env.scene.robot_qvel :][:, :2].clone()
    env.sim.step(20)
    gained = env.sim.data.qvel[:, env.scene.robot_qvel :][:, :2] - before
    expected = -0.1 * GRAVITY * env.scene.against_gravity[:, :2]
    torch.testing.assert_close(gained.float(), expected, atol=2e-4, rtol=0)
    assert float(expected.norm(dim=1)[0]) == pytest.approx(0.1 * GRAVITY * math.sin(SLOPE))
    env.close()


def test_each_world_slopes_in_its_own_direction_whatever_runs_beside_it():
    few = sloping(2).scene.against_gravity
    many = sloping(5).scene.against_gravity
    assert torch.equal(few, many[:2])
    assert len(many[:, 0].unique()) == 5
    assert many[:, 2].tolist() == pytest.approx([math.cos(SLOPE)] * 5)


def test_level_ground_leaves_gravity_to_the_model():
    env = sloping(slope=0.0)
    assert env.scene.against_gravity is None
    assert env.sim._batch.expanded("opt.gravity") is None


def test_a_robot_on_a_slope_measures_gravity_in_its_trunks_frame():
    # Uphill is along x. The robot stands parallel to the floor and looks to the left.
    state = SceneState.zeros(1, 1, has_object=False)
    uphill = torch.tensor([[-math.sin(SLOPE)], [0.0], [math.cos(SLOPE)]])
    sloped = state.like(torch.cat((state.rows, uphill)))
    sloped.body_quat[...] = torch.tensor([math.cos(math.pi / 4), 0.0, 0.0, math.sin(math.pi / 4)])
    expected = torch.tensor([[[0.0, math.sin(SLOPE), math.cos(SLOPE)]]])
    torch.testing.assert_close(sloped.against_gravity_b, expected)
    torch.testing.assert_close(sloped.with_goal(torch.zeros(1, 2)).against_gravity_b, expected)
    command = torch.zeros(1, 1, 3)
    trot = Trot(Robots(robots_of("go1", 1), torch.device("cpu")))
    memory = GaitMemory(torch.zeros(1, 1, GaitMemory.SIZE))
    observed = trot.observe(sloped, command, is_moving(command), memory)[0, 0, :3]
    torch.testing.assert_close(observed, -expected[0, 0])
    # Postures are relative to the floor.
    torch.testing.assert_close(sloped.up_b, torch.tensor([[[0.0, 0.0, 1.0]]]))


def test_the_sliding_force_is_that_uphill():
    level = sloping(slope=0.0)
    steep = sloping()
    mass = float(level.scene.model.body("object").mass[0])
    fields = {"pair_friction": torch.full((1, 1, 5), 0.3, dtype=torch.float64)}
    gravity = GRAVITY * torch.tensor([[math.sin(SLOPE), 0.0, -math.cos(SLOPE)]])
    force = sliding_forces(steep.scene, fields | {"opt.gravity": gravity.double()})
    by_hand = mass * GRAVITY * (0.3 * math.cos(SLOPE) + math.sin(SLOPE))
    assert force.tolist() == pytest.approx([by_hand])
