"""A gait's metrics from hand-made walks, and its feet against MuJoCo's."""

import mujoco
import numpy as np
import pytest
import torch

from mapush.extensions.gait.leg_motion import WalkingRobots
from mapush.extensions.gait.measures import (
    foot_motion,
    slip_share,
    swing_clearance,
)
from mqe.world.robots import ROBOTS
from mqe.world.robots.robot import LEGS
from mqe.world.scene import build_scene
from mqe.world.state import SceneState
from tests.support.scenes import DEFAULT_JOINT_POS


@pytest.fixture(scope="module", params=ROBOTS)
def tumbling(request) -> tuple[mujoco.MjModel, mujoco.MjData, SceneState, WalkingRobots]:
    """A robot in mid-air with rotation about every axis, as a scene state and as numbers."""
    robots = WalkingRobots([ROBOTS[request.param]], dtype=torch.float64)
    model = build_scene(1, None, robots=request.param).model
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    data.qpos[:7] = (
        0.3,
        -0.2,
        0.8,
        *(quat := np.array([0.8, 0.3, -0.4, 0.33])) / np.linalg.norm(quat),
    )
    data.qpos[7:] = np.array(robots.cfgs[0].joint_pos) + rng.uniform(-0.3, 0.3, 12)
    data.qvel[:] = rng.uniform(-2.0, 2.0, model.nv)
    data.ctrl[:] = data.qpos[7:] + rng.uniform(-1.5, 1.5, 12)
    mujoco.mj_forward(model, data)
    rows = torch.tensor(np.concatenate((data.qpos, data.qvel, np.zeros(3)))).unsqueeze(1)
    return model, data, SceneState(rows, num_robots=1, has_object=False), robots


def test_feet_are_where_mujoco_has_them_and_as_fast(tumbling):
    model, data, state, robots = tumbling
    heights = []
    speeds = []
    for leg in ("FL", "FR", "RL", "RR"):
        geom = model.geom(f"robot0/{leg}_foot").id
        lowest = data.geom_xpos[geom] - (0.0, 0.0, robots.cfgs[0].foot_radius)
        jacobian = np.zeros((3, model.nv))
        mujoco.mj_jac(model, data, jacobian, None, lowest, model.geom_bodyid[geom])
        heights.append(lowest[2])
        speeds.append(np.linalg.norm((jacobian @ data.qvel)[:2]))
    feet = foot_motion(state, robots)
    torch.testing.assert_close(
        feet.clearance[0, 0], torch.tensor(heights, dtype=torch.float64), atol=1e-9, rtol=0.0
    )
    torch.testing.assert_close(
        feet.speed[0, 0], torch.tensor(speeds, dtype=torch.float64), atol=1e-9, rtol=0.0
    )


def test_swings_lie_between_contacts_and_are_no_bounces():
    dt = 0.02  # so that a swing takes three steps at least
    height = {
        "two swings": [0.0, 0.03, 0.05, 0.02, -0.001, 0.01, 0.07, 0.07, 0.01, 0.0, 0.0, 0.0, 0.0],
        "unfinished ones do not count": [
            0.09,
            0.09,
            0.09,
            -0.01,
            0.01,
            0.02,
            0.01,
            -0.01,
            0.5,
            0.5,
            0.5,
            0.5,
            0.5,
        ],
        "nor do bounces": [
            -0.01,
            0.3,
            0.3,
            -0.01,
            0.01,
            0.04,
            0.01,
            -0.01,
            0.3,
            0.3,
            -0.01,
            0.0,
            0.0,
        ],
        "always on the floor": [-0.01] * 13,
    }
    clearance = torch.tensor(list(height.values())).t()  # (13, 4)
    torch.testing.assert_close(
        swing_clearance(clearance, dt), torch.tensor([0.06, 0.02, 0.04, 0.0])
    )


def test_a_foot_slips_on_the_floor_only():
    clearance = torch.tensor([[-0.001, 0.0, -0.002, 0.02], [-0.001, 0.01, 0.01, -0.003]])
    speed = torch.tensor([[0.05, 0.11, 0.09, 3.0], [0.2, 3.0, 3.0, 0.0]])
    assert slip_share(clearance, speed) == pytest.approx(2 / 5)
    assert slip_share(clearance + 1.0, speed) == 0.0


@pytest.mark.parametrize("name", ROBOTS)
def test_leg_kinematics_agree_with_mujoco(name):
    robots = WalkingRobots([ROBOTS[name]], dtype=torch.float64)
    model = build_scene(1, None, robots=name).model
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    data.qpos[3:7] = (1.0, 0.0, 0.0, 0.0)
    data.qpos[7:] = np.array(DEFAULT_JOINT_POS) + rng.uniform(-0.3, 0.3, 12)
    data.qvel[6:] = rng.normal(size=12)
    mujoco.mj_forward(model, data)
    joints = torch.tensor(data.qpos[7:])
    feet, rates = robots.feet_and_rates(joints, torch.tensor(data.qvel[6:]))
    assert torch.equal(feet, robots.feet(joints))
    trunk = data.body("robot0/trunk").xpos
    for k, leg in enumerate(LEGS):
        geom = model.geom(f"robot0/{leg}_foot").id
        np.testing.assert_allclose(feet[k], data.geom_xpos[geom] - trunk, atol=1e-9)
        jacobian = np.zeros((3, model.nv))
        mujoco.mj_jac(model, data, jacobian, None, data.geom_xpos[geom], model.geom_bodyid[geom])
        np.testing.assert_allclose(rates[k], jacobian @ data.qvel, atol=1e-9)
