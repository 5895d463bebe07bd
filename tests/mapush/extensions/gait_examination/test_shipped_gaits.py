"""A shipped gait in worlds of the examination, and the motors' formula against the engine."""

from __future__ import annotations

import mujoco
import pytest
import torch

from mapush.extensions.gait_examination.gait_worlds import GaitWorlds, Walker
from mapush.extensions.gait_examination.measures import motor_torque
from mqe.controllers.gait import load_gait
from mqe.registry import SimCfg
from mqe.world.robots import Robots, robots_of
from mqe.world.robots.robot import NUM_JOINTS
from mqe.world.scene import build_scene

CPU = torch.device("cpu")
SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)


def test_the_shipped_gait_follows_a_command_and_stands() -> None:
    worlds = GaitWorlds(Walker(load_gait("pretrained:go1_velocity", CPU), SIM, 0), 4)
    command = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
    velocity = []
    for _ in range(150):
        worlds.advance(command)
        velocity.append(worlds.velocity)
    assert not worlds.fallen.any()
    torch.testing.assert_close(torch.stack(velocity[50:]).mean(dim=0), command, atol=0.06, rtol=0)


@pytest.mark.parametrize("speed", [0.0, 13.5, 21.75, 30.0, -20.0])
def test_the_formula_of_the_motors_is_the_engine_s(speed: float) -> None:
    model = build_scene(1, None, robots="go1", model="physical").model
    data = mujoco.MjData(model)
    data.qpos[2] = 1.0
    data.ctrl[:] = 100.0  # far ahead of every joint
    data.qvel[6] = speed
    mujoco.mj_forward(model, data)
    robots = Robots(robots_of("go1", 1, "physical"))
    joint_vel = torch.zeros(NUM_JOINTS)
    joint_vel[0] = speed
    limit = torch.tensor(model.actuator_forcerange[:, 1], dtype=torch.float32)
    joint_pos = torch.tensor(data.qpos[7:19], dtype=torch.float32)
    formula = motor_torque(robots, torch.full((NUM_JOINTS,), 100.0), joint_pos, joint_vel, limit)
    assert formula.flatten()[0].item() == pytest.approx(data.actuator_force[0], abs=1e-4)
