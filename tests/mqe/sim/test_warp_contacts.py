"""Contacts of boxes on MuJoCo Warp, on its CPU device, against MuJoCo: as many, and as strong."""

from __future__ import annotations

from typing import Any

import mujoco
import pytest
import torch

from harl_mapush import config
from mqe.registry import SimCfg, make_env
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.sim.simulator import snapshot
from mqe.world.scene import DECIMATION
from tests.support.lazy_modules import LazyModule, needs_warp

pytestmark = needs_warp
mujoco_warp: Any = LazyModule("mqe.sim.mujoco_warp")
CPU = torch.device("cpu")
TWO_BARS = """
<mujoco>
  <option timestep="0.005" integrator="implicitfast" cone="elliptic"/>
  <worldbody>
    <body><freejoint/><geom type="box" size="0.017 0.012 0.1" mass="1"/></body>
    <body pos="0 0.0235 0"><freejoint/><geom type="box" size="0.017 0.012 0.1" mass="1"/></body>
  </worldbody>
</mujoco>
"""


def test_boxes_that_touch_almost_face_to_face_have_mujocos_contacts():
    model = mujoco.MjModel.from_xml_string(TWO_BARS)
    count = 16
    # [rad] about their normal, off it
    turn = torch.linspace(0.1, 1.5, count)
    tilt = torch.linspace(0.0, 0.01, count)
    qpos = torch.tensor(model.qpos0).float().repeat(count, 1)
    qpos[:, 10:] = torch.stack(
        (torch.cos(turn / 2), tilt / 2, torch.sin(turn / 2), torch.zeros(count)), dim=1
    )
    ours = mujoco_warp.MujocoWarpSimulator(model, count, CPU, mujoco_warp.Capacity(16, 64))
    theirs = MujocoBatchSimulator(model, count, 1)
    for sim in (ours, theirs):
        sim.data.qpos.copy_(qpos)
    num_contacts = [snapshot(theirs, k).ncon for k in range(count)]
    assert min(num_contacts) == 1  # MuJoCo sees two edges that cross
    assert max(num_contacts) == 8  # and two faces
    for sim in (ours, theirs):
        sim.step(1)
    assert int(ours._nacon) == sum(num_contacts)
    torch.testing.assert_close(ours.data.qvel.double(), theirs.data.qvel, rtol=0, atol=1e-5)
    ours.close()
    theirs.close()


@pytest.mark.slow
def test_one_control_step_of_robots_that_touch_is_mujocos():
    cfg, _ = config.resolve(config.load_preset("cuboid_happo"), {"env": {"num_envs": 256}})
    ours, theirs = (
        make_env(cfg.env, SimCfg(name=name, device="cpu"), cfg.task, 1)
        for name in ("warp", "mujoco")
    )
    theirs.reset()
    for _ in range(25):
        theirs.step(torch.full((256, 2, 3), 0.5))
    touches = theirs.state.robot_contact_force.abs().amax(dim=(1, 2)) > 0.0
    assert int(touches.sum()) > 10
    qpos, qvel, ctrl, goal = (
        getattr(theirs.sim.data, name).float() for name in ("qpos", "qvel", "ctrl", "mocap_pos")
    )
    for env in (ours, theirs):
        env.sim.write(torch.ones(256, dtype=torch.bool), qpos, qvel, goal)
        env.sim.data.ctrl.copy_(ctrl + 0.05)
        env.sim.step(DECIMATION)
    error = (ours.sim.data.qpos.double() - theirs.sim.data.qpos).abs().amax(dim=1)
    assert float(error.max()) < 1e-4
    ours.close()
    theirs.close()
