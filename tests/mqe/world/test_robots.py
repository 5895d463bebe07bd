"""Robots as data: every one in the registry can be built and trained, and teams may be mixed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import mujoco
import pytest
import torch

from harl_mapush import config, test, train
from harl_mapush.runs.policy import load_team
from mqe.config import ConfigError
from mqe.controllers.gait import load_gait, load_team_gait
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg
from mqe.viewer.offscreen import choose_backend
from mqe.viewer.video import record
from mqe.world.robots import ROBOTS, Robots, robots_of
from mqe.world.robots.robot import NUM_JOINTS, Shape
from mqe.world.scene import build_scene
from tests.support.gaits import small_gait
from tests.support.rounding import SIX_DECIMALS
from tests.support.tiny_runs import TINY

SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)
MIXED = ("go1", "go2", "go1")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def go2_gait(tmp_path_factory) -> Path:
    """An untrained gait of a Go2."""
    folder = tmp_path_factory.mktemp("go2")
    small_gait(folder, gain=0.01, robots="go2")
    return folder


@pytest.mark.parametrize(("name", "mass"), [("go1", 11.309932), ("go2", 15.019)])
def test_a_robot_weighs_what_its_urdf_says(name: str, mass: float) -> None:
    model = build_scene(1, None, robots=name).model
    assert model.body_subtreemass[0] == pytest.approx(mass, abs=SIX_DECIMALS)


def test_the_physical_go1_has_the_corrected_masses_and_rotors() -> None:
    model = build_scene(1, None, robots="go1", model="physical").model
    legs = 4 * (0.591 + 0.92 + 0.135862 + 0.06)
    assert model.body_subtreemass[0] == pytest.approx(
        5.204 + 0.001 + legs + 12 * 0.089, abs=SIX_DECIMALS
    )
    calf = model.body("robot0/FL_calf").inertia
    assert max(calf) < 0.0016  # the first URDF has 0.0040 [kg m^2]
    rotor = 0.000111842 * 6.33**2
    armature = [rotor, rotor, rotor * 1.5**2]
    assert model.dof_armature[6:9].tolist() == pytest.approx(armature)
    assert model.dof_frictionloss[6:18].tolist() == [0.2] * 12


@pytest.mark.parametrize(
    ("speed", "torque"),
    [(0.0, 20.2), (13.5, 20.2), (21.75, 10.1), (30.0, 0.0), (-20.0, 20.2)],
)
def test_torque_falls_along_the_motors_line(speed: float, torque: float) -> None:
    model = build_scene(1, None, robots="go1", model="physical").model
    data = mujoco.MjData(model)
    data.qpos[2] = 1.0
    data.ctrl[:] = 100.0  # far ahead of every joint
    data.qvel[6] = speed
    mujoco.mj_forward(model, data)
    assert data.actuator_force[0] == pytest.approx(torque, abs=SIX_DECIMALS)


def test_legs_collide_with_one_another_only_in_the_physical_model() -> None:
    num_contacts = {}
    for kind in ("reference", "physical"):
        model = build_scene(1, None, robots="go1", model=kind).model
        data = mujoco.MjData(model)
        data.qpos[2] = 1.0
        data.qpos[7:19] = ROBOTS["go1"].joint_pos
        # Both front legs turn inwards until they cross.
        data.joint("robot0/FL_hip").qpos = -0.8
        data.joint("robot0/FR_hip").qpos = 0.8
        mujoco.mj_forward(model, data)
        num_contacts[kind] = data.ncon
    assert num_contacts["reference"] == 0
    assert num_contacts["physical"] > 0


@pytest.mark.parametrize("name", ROBOTS)
def test_a_robots_numbers_reach_the_model(name: str) -> None:
    robot = ROBOTS[name]
    reference = build_scene(1, None, robots=name).model
    assert reference.nu == NUM_JOINTS
    assert reference.actuator_forcerange[:3, 1].tolist() == list(robot.torque_limit)
    assert reference.jnt_range[1:].tolist() == [list(ends) for ends in robot.joint_range]
    low, high = torch.tensor(robot.joint_range).unbind(dim=1)
    stance = torch.tensor(robot.joint_pos)
    assert ((low < stance) & (stance < high)).all()


def test_a_mixed_team_bends_each_robots_legs_as_its_own() -> None:
    torch.manual_seed(0)
    team = Robots(robots_of(MIXED, 3))
    joints = team.joint_pos + 0.3 * torch.randn(5, 3, NUM_JOINTS)
    up = torch.nn.functional.normalize(torch.randn(5, 3, 3), dim=-1)
    height = 0.1 + 0.1 * torch.rand(5, 3)
    for k, name in enumerate(MIXED):
        single = Robots([ROBOTS[name]])
        torch.testing.assert_close(team.knees(joints)[:, k], single.knees(joints[:, k]))
        rests = single.rests_on_floor(up[:, k], height[:, k], joints[:, k])
        assert torch.equal(team.rests_on_floor(up, height, joints)[:, k], rests)
    assert not torch.allclose(team.knees(joints)[:, 0], team.knees(joints[:, [1, 1, 1]])[:, 0])


def test_each_robot_of_a_mixed_team_walks_by_the_gait_of_its_kind(go2_gait) -> None:
    names = ["pretrained:go1_velocity", str(go2_gait), "pretrained:go1_velocity"]
    gait = load_team_gait(names, Robots(robots_of(MIXED, 3)))
    obs = torch.randn(4, 3, 59)
    for k, name in enumerate(names):
        torch.testing.assert_close(gait(obs)[:, k : k + 1], load_gait(name, CPU)(obs[:, k : k + 1]))


@pytest.mark.slow
def test_a_mixed_team_is_trained_resumed_evaluated_and_filmed(go2_gait, tmp_path) -> None:
    run = tmp_path / "run"
    figures = tmp_path / "figures.json"
    gaits = f"task.gait=[pretrained:go1_velocity, {go2_gait}]"
    words = ["--set", "env.robots=[go1, go2]", "--set", gaits, "--set", "task.episode_length_s=0.4"]
    assert train.main([*words, "--num_env_steps", "32", "--out", str(run), *TINY]) == 0
    assert train.main(["--resume", str(run), "--num_env_steps", "160"]) == 0
    settings = config.load_preset(run / "config.yaml")
    assert settings["env"]["robots"] == ["go1", "go2"]
    measure = ["--num_envs", "3", "--device", "cpu", "--team_only", "--json", str(figures)]
    measure += ["--set", "task.episode_length_s=0.4"]
    assert test.main([str(run), *measure]) == 0
    assert json.loads(figures.read_text())["num_episodes"] == 3
    try:
        choose_backend()
    except ConfigError as error:
        pytest.skip(str(error))
    cfg, _ = config.resolve(settings, {"env": {"num_envs": 1}})
    env = make_env(cfg.env, cfg.sim, cfg.task, 0)
    team = load_team(run / "checkpoints" / "160", env)
    film = record(env, team, tmp_path / "film.mp4", seconds=0.2, fps=10, size=(64, 48))
    env.close()
    assert film.num_frames >= 2


def test_the_model_of_a_mixed_team_holds_both() -> None:
    model = build_scene(2, None, robots=("go2", "go1")).model
    trunks = [model.body(f"robot{k}/trunk").id for k in range(2)]
    masses = [float(model.body_subtreemass[body]) for body in trunks]
    assert masses == pytest.approx([15.019, 11.309932], abs=SIX_DECIMALS)
    warp = pytest.importorskip("mqe.sim.mujoco_warp")
    assert warp.capacity(model) == warp.capacity(build_scene(2, None).model)


@pytest.mark.parametrize(
    ("env", "task", "complaint"),
    [
        (EnvCfg(num_envs=2, robots=("go1", "spot")), PushCfg(), r"env\.robots.*unknown.*spot"),
        (
            EnvCfg(num_envs=2, num_agents=3, robots=("go1", "go2")),
            PushCfg(),
            "2 robots for a team of 3",
        ),
        (
            EnvCfg(num_envs=2, robots="go2"),
            PushCfg(gait="pretrained:go1_velocity"),
            "the gait of a go1, not of a go2",
        ),
        (
            EnvCfg(num_envs=2),
            PushCfg(gait=("pretrained:go1_velocity",) * 3),
            "3 gaits for 2 robots",
        ),
    ],
)
def test_teams_that_cannot_be_are_refused(env: EnvCfg, task: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_env(env, SIM, task, seed=0)


def test_a_robot_with_a_shape_that_cannot_be_is_refused() -> None:
    for shape in (Shape("box", (0.1, 0.1)), Shape("capsule", (0.1, 0.1))):
        with pytest.raises(ConfigError, match="robot go1: (shape|trunk_shapes)"):
            dataclasses.replace(ROBOTS["go1"], trunk_shapes=(shape,))
