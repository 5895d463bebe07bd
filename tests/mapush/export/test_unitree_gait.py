"""A gait exported for Unitree's controllers acts like our own controller."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mapush import cli
from mqe.controllers.gait import GaitController, load_gait
from mqe.world.robots import ROBOTS, Robots
from mqe.world.state import ROBOT_QVEL, SceneState
from tests.support.paths import ROOT
from tests.support.registries import restored_registries
from tests.support.unitree_controller import UnitreeController

GAIT = "pretrained:go2_velocity"
SDK_LEGS = [1, 0, 3, 2]  # of ours, FL, FR, RL, RR, in the order of Unitree's SDK


FORM = ["--for", "unitree", "--import", "unitree_gait"]


@pytest.fixture(scope="module", autouse=True)
def example():
    with pytest.MonkeyPatch.context() as patch, restored_registries():
        patch.syspath_prepend(ROOT / "examples")
        yield
    sys.modules.pop("unitree_gait", None)


@pytest.fixture(scope="module")
def exported(tmp_path_factory, example) -> Path:
    out = tmp_path_factory.mktemp("unitree") / "go2"
    assert cli.main(["export", GAIT, str(out), *FORM]) == 0
    return out


def sdk(joints: np.ndarray) -> np.ndarray:
    """Return the joint numbers in Unitree's motor order."""
    return joints.reshape(4, 3)[SDK_LEGS].reshape(12)


def draw_state(generator: torch.Generator) -> SceneState:
    tilted = torch.tensor([1.0, 0.0, 0.0, 0.0]) + 0.2 * torch.randn(4, generator=generator)
    joints = torch.tensor(ROBOTS["go2"].joint_pos) + 0.3 * torch.randn(12, generator=generator)
    qpos = torch.cat((torch.zeros(3), torch.nn.functional.normalize(tilted, dim=0), joints))
    qvel = torch.randn(ROBOT_QVEL, generator=generator)
    return SceneState(torch.cat((qpos, qvel, torch.zeros(3))).unsqueeze(1), 1, False)


def message(state: SceneState, command: torch.Tensor) -> dict[str, np.ndarray]:
    return {
        "gyroscope": state.robot_angvel_b[0, 0].numpy(),
        "gravity": -state.up_b[0, 0].numpy(),
        "q": sdk(state.joint_pos[0, 0].numpy()),
        "dq": sdk(state.joint_vel[0, 0].numpy()),
        "joystick": command.numpy(),
    }


@pytest.mark.parametrize(
    "command", [(0.4, -0.2, 0.3), (0.0, 0.0, 0.0), (-0.6, 0.0, 0.0)], ids=["walk", "stand", "back"]
)
def test_unitrees_controller_moves_the_joints_as_ours_does(exported, command) -> None:
    robot = ROBOTS["go2"]
    gait = load_gait(GAIT, torch.device("cpu"), robot)
    ours = GaitController(gait, 1, Robots([robot]))
    theirs = UnitreeController(exported)
    held = torch.tensor(command)
    ours.command(held.view(1, 1, 3))
    generator = torch.Generator().manual_seed(0)
    state = draw_state(generator)
    theirs.begin(message(state, held))
    for _ in range(45):  # two cycles of the trot and more
        expected = ours.targets(state)[0, 0].numpy()
        np.testing.assert_allclose(theirs.step(message(state, held)), sdk(expected), atol=1e-5)
        state = draw_state(generator)


def test_motors_have_their_own_order_and_the_network_one_row(exported) -> None:
    theirs = UnitreeController(exported)
    names = theirs.cfg["actions"]["JointPositionAction"]["joint_names"]
    in_order = [names[theirs.motors.index(motor)] for motor in range(12)]
    legs = ("FR", "FL", "RR", "RL")
    joints = ("hip", "thigh", "calf")
    assert in_order == [f"{leg}_{joint}_joint" for leg in legs for joint in joints]
    assert theirs.session.get_inputs()[0].shape == [1, 65]
    assert theirs.session.get_outputs()[0].shape == [1, 12]


def test_a_team_is_no_gait(tmp_path, capsys) -> None:
    words = ["export", "pretrained:cuboid", str(tmp_path / "team"), *FORM]
    assert cli.main(words) == 2
    assert "pretrained:cuboid is a team" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_robot_without_such_a_controller_is_named(tmp_path, capsys) -> None:
    words = ["export", "pretrained:go1_velocity", str(tmp_path / "go1"), *FORM]
    assert cli.main(words) == 0
    assert "Unitree has such a controller for the go2, and this gait is a go1's" in (
        capsys.readouterr().out
    )
