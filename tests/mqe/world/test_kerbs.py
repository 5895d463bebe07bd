"""Rough ground: kerbs that robots climb and the object does not touch."""

import mujoco
import numpy as np
import pytest
import torch

from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg
from mqe.world.objects import OBJECTS
from mqe.world.randomization import RandomizationCfg
from mqe.world.scene import KERB_HEIGHTS, KERB_SPACING, build_scene


def test_kerbs_cross_the_arena_at_three_heights() -> None:
    model = build_scene(1, None, ground="kerbs", foot_friction=(0.4,)).model
    flat = build_scene(1, None, foot_friction=(0.4,)).model
    kerbs = [k for k in range(model.ngeom) if model.geom_pos[k, 2] in [h / 2 for h in KERB_HEIGHTS]]
    assert len(kerbs) == model.ngeom - flat.ngeom == 2 * 2 * int(12.0 / KERB_SPACING)
    tops = model.geom_pos[kerbs, 2] + model.geom_size[kerbs, 2]
    assert np.unique(tops.round(9)).tolist() == list(KERB_HEIGHTS)
    assert model.geom_friction[kerbs, 0].tolist() == [0.4] * len(kerbs)


@pytest.mark.parametrize("sim", ["mujoco", pytest.param("warp", marks=pytest.mark.slow)])
def test_a_robot_leans_with_two_feet_on_a_kerb_and_a_box_does_not(sim: str) -> None:
    if sim == "warp":
        pytest.importorskip("mujoco_warp")
    ends = {}
    for ground in ("flat", "kerbs"):
        env_cfg = EnvCfg(1, 2, ground=ground)
        env = make_env(env_cfg, SimCfg(name=sim, device="cpu", num_threads=1), PushCfg(), 0)
        env.reset()
        qpos = env.sim.data.qpos
        # A robot with its left feet above a kerb of 4 cm, and the box on a crossing
        qpos[0, :3] = torch.tensor([3.0, -0.5 * KERB_SPACING - 0.18, 0.40])
        qpos[0, 3:7] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        qpos[0, 38:41] = torch.tensor([-2.25, -2.25, OBJECTS["cuboid"].spawn_height])
        stance = torch.tensor(env.scene.robots[0].joint_pos)
        qpos[0, 7:19] = stance
        env.sim.data.ctrl[0, :12] = stance
        env.sim.data.qvel.zero_()
        env.sim.step(80)
        ends[ground] = qpos[0].clone()
        env.close()
    roll = 2.0 * torch.stack((ends["flat"][4], ends["kerbs"][4]))
    assert abs(float(roll[0])) < 0.02
    assert 0.1 < float(roll[1]) < 0.3
    torch.testing.assert_close(ends["flat"][40:45], ends["kerbs"][40:45], atol=1e-6, rtol=0)


def test_the_grounds_friction_is_that_of_its_kerbs() -> None:
    env_cfg = EnvCfg(2, 2, ground="kerbs", randomize=RandomizationCfg(ground_friction=0.5))
    env = make_env(env_cfg, SimCfg(device="cpu", num_threads=1), PushCfg(), 0)
    friction = torch.as_tensor(env.sim._batch.expanded("geom_friction")[0])
    model = env.scene.model
    assert len(env.scene.ground_geoms) > 1
    for geom in env.scene.ground_geoms:
        assert float(friction[geom, 0]) == pytest.approx(0.5 * model.geom_friction[geom, 0])
    assert model.geom(env.scene.ground_geoms[0]).name == "floor"
    assert model.geom_type[env.scene.ground_geoms[0]] == mujoco.mjtGeom.mjGEOM_PLANE
    env.close()
