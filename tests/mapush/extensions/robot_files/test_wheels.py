"""Robots on wheels: read from a file, they stand, drive by commands, and push with others."""

from __future__ import annotations

import json

import pytest
import torch

from harl_mapush import test, train
from mapush.export import command as export
from mapush.extensions.gait.gait_worlds import GaitWorlds, Walker
from mapush.extensions.robot_files.command import main
from mapush.extensions.robot_files.reader import read_robot_file
from mqe.config import ConfigError
from mqe.controllers.gait import gait_names, load_team_gait
from mqe.registry import SimCfg
from mqe.tasks.push.layouts import PushLayouts
from mqe.world.objects import OBJECTS, Footprint
from mqe.world.robots import Robots, robots_of
from mqe.world.robots.described import read_checked_robot
from mqe.world.robots.robot import NUM_JOINTS
from mqe.world.scene import build_scene
from mqe.world.streams import Streams
from tests.support.registries import restored_registries
from tests.support.tiny_runs import TINY

SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)
WHEEL = """
  <link name="{name}">
    <inertial><mass value="2"/>
    <inertia ixx="0.02" iyy="0.03" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><origin rpy="1.5708 0 0"/>
    <geometry><cylinder length="0.1" radius="{radius}"/></geometry></collision>
  </link>
  <joint name="{name}_joint" type="continuous">
    <parent link="base"/><child link="{name}"/>
    <origin xyz="{x} {y} 0.05"/><axis xyz="0 {axis} 0"/>
    <limit effort="20" velocity="9"/>
  </joint>"""
BASE = """<robot name="rover">
  <link name="base">
    <inertial><origin xyz="-0.02 0 0.1"/><mass value="32"/>
    <inertia ixx="0.6" iyy="1.6" izz="2" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><origin xyz="0 0 0.14"/><geometry><box size="1 0.5 0.25"/></geometry></collision>
  </link>{wheels}
</robot>"""


def rover(rear_radius: float = 0.18) -> str:
    """Return a URDF with four wheels."""
    wheels = ""
    for name, x, y in (
        ("fl", 0.25, 0.3),
        ("fr", 0.25, -0.3),
        ("rl", -0.25, 0.3),
        ("rr", -0.25, -0.3),
    ):
        rear = name[0] == "r"
        wheels += WHEEL.format(
            name=name,
            x=x,
            y=y,
            radius=rear_radius if rear else 0.18,
            axis="-1" if rear else "1",
        )
    return BASE.format(wheels=wheels)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rover.urdf"
    path.write_text(rover())
    with restored_registries():
        yield path


def test_a_base_on_wheels_is_read(file):
    robot, notes = read_robot_file(file)
    assert robot.mass == pytest.approx(32.0 + 4 * 2.0)
    assert robot.foot_radius == pytest.approx(0.18)

    assert robot.standing_height == pytest.approx(0.18, abs=0.001)
    assert list(robot.wheels[1:3]) == [(0.25, -0.3, 0.0), (-0.25, 0.3, 0.0)]
    # The wheels' masses are the trunk's
    assert robot.trunk.com == pytest.approx((-0.02 * 0.8, 0.0, 0.05 * 0.8))
    assert robot.torque_limit == (20.0,)
    assert notes == ("40.00 kg; 1 boxes for 5 shapes, feet and wheels counted",)


def test_wheels_ahead_of_the_base_are_named(tmp_path):
    path = tmp_path / "short.urdf"
    path.write_text(rover().replace('size="1 0.5 0.25"', 'size="0.8 0.5 0.25"'))
    (_, note) = read_robot_file(path).notes
    assert note.startswith("its wheels reach 0.43 m ahead and its base 0.4 m, so it climbs")


def test_wheels_are_written_for_correction_and_read_back(file, tmp_path, capsys):
    out = tmp_path / "corrected.yaml"
    assert main([str(file), "--out", str(out)]) == 0
    assert "mapush train" not in capsys.readouterr().out  # it needs no gait
    corrected = read_checked_robot(out)
    assert corrected.wheels == read_robot_file(file).cfg.wheels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (rover(rear_radius=0.1), "it needs 4 to 12 driven wheels .* of one radius"),
        (rover().replace('xyz="0 1 0"', 'xyz="1 0 0"'), "with axes along y"),
        (rover().replace("0.3 0.05", "0 0.05"), "left and right of its middle"),
        (rover().replace('effort="20"', 'effort="0"'), "fl_joint has no torque limit"),
    ],
)
def test_other_wheels_are_refused_in_one_line(text, message, tmp_path):
    path = tmp_path / "rover.urdf"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_robot_file(path)
    assert "\n" not in str(caught.value)


def test_a_robot_on_wheels_drives_by_commands(file):
    gait = load_team_gait(None, Robots(robots_of(str(file), 1)))
    commands = torch.tensor([[0.0, 0, 0], [0.8, 0, 0], [-0.5, 0, 0], [0, 0, 0.8], [0.5, 0, -0.5]])
    worlds = GaitWorlds(Walker(gait, SIM, 0, "rover"), len(commands))
    for _ in range(100):
        worlds.advance(commands)
    velocity = torch.zeros_like(commands)
    for _ in range(50):
        worlds.advance(commands)
        velocity += worlds.velocity / 50
    worlds.close()
    assert not worlds.collapsed.any()
    torch.testing.assert_close(velocity[:3], commands[:3], atol=0.02, rtol=0.0)
    # Wheels slip as the robot turns
    torch.testing.assert_close(velocity[3:, 2], commands[3:, 2], atol=0.0, rtol=0.3)


@pytest.mark.parametrize("robots", ["{0}", "[go1,{0}]"])
def test_a_team_with_wheels_pushes_a_box_to_its_goal(robots, file, tmp_path):
    figures = tmp_path / "figures.json"
    words = ["--set", f"env.robots={robots.format(file)}", "--set", "sim.num_threads=1"]
    words += ["--suite", "team2", "--object", "cuboid", "--num_episodes", "2", "--seed", "2000"]
    assert test.main(["scripted_team", *words, "--team_only", "--json", str(figures)]) == 0
    assert json.loads(figures.read_text())["success_rate"] >= 0.5


def test_a_mixed_team_learns_and_resumes(file, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["--set", f"env.robots=[{file},go1]", "--out", str(run), "--device", "cpu", *TINY]
    assert train.main([*words, "--num_env_steps", "32"]) == 0
    assert train.main(["--resume", str(run), "--num_env_steps", "160"]) == 0
    assert export.main([str(run), str(tmp_path / "onnx")]) == 2
    assert "robots on wheels are not exported" in capsys.readouterr().err
    assert export.main([str(run), str(tmp_path / "policy"), "--for", "policy"]) == 0


def test_a_robot_on_wheels_has_no_gait_and_idle_joints_beside_legs(file):
    robots = robots_of([str(file), "go1"], 2)
    assert gait_names("pretrained:go1_velocity", robots) == ["", "pretrained:go1_velocity"]
    model = build_scene(2, None, robots=[str(file), "go1"]).model
    assert model.nu == 2 * NUM_JOINTS
    mass = model.body_subtreemass[model.body("robot0/trunk").id]
    assert mass == pytest.approx(40.0, abs=1e-4)
    gait = load_team_gait(None, Robots(robots))
    assert not gait(torch.randn(3, 2, 59))[:, 0].any()


def test_a_gait_for_wheels_is_refused_in_one_line(file, capsys):
    arguments = ["--preset", "go1_velocity", "--set", f"env.robots={file}", "--device", "cpu"]
    assert train.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "env.robots: rover has wheels, which need no gait" in line


@pytest.mark.parametrize("kind", ["close", "tangled"])
def test_robots_on_wheels_start_beside_one_another_with_their_wheels_as_they_are(file, kind):
    robots = Robots(robots_of([str(file), "go1"], 2))
    footprint = Footprint(OBJECTS["cuboid"])
    shares = (float(kind == "close"), float(kind == "tangled"))
    layouts = PushLayouts(footprint, robots, "separated", (1.5, 3.0), *shares)
    layout = layouts.draw(Streams(0, 500, robots.device), torch.zeros(500, dtype=torch.int64))
    assert not layout.joint_pos[:, 0].any()
    between = layout.robot_pos[:, 0, :2] - layout.robot_pos[:, 1, :2]
    # Half of a rover is 0.35 m wide, of a Go1 0.15 m.
    assert between.norm(dim=1).min() > 0.5
