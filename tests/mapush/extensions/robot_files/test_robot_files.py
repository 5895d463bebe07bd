"""Robots from MJCF and URDF files: the data read back from a file of known data."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from harl_mapush.config import RunCfg, resolve
from harl_mapush.runs import named_files
from harl_mapush.runs.exported import robot_names
from mapush.extensions.gait.starts import start_poses
from mapush.extensions.robot_files.command import main
from mapush.extensions.robot_files.maker_file import read_maker_file
from mapush.extensions.robot_files.reader import read_robot_file
from mapush.extensions.robot_files.stance import nominal_angles, stand
from mqe.config import ConfigError
from mqe.world.robots import ROBOTS, RobotCfg, Robots, robots_of
from mqe.world.robots.build import add_robot
from mqe.world.robots.described import read_robot
from mqe.world.robots.robot import LEG_JOINTS, LEGS, Shape
from mqe.world.scene import build_scene
from tests.support.registries import restored_registries
from tests.support.rounding import SIX_DECIMALS

GO1 = ROBOTS["go1"]


def go1_spec() -> mujoco.MjSpec:
    """Return the Go1 as a maker might describe it, alone in its file."""
    spec = mujoco.MjSpec()
    spec.compiler.degree = False
    add_robot(spec, GO1, "go1", (0.5, 0.5, 0.5, 1.0), collision=1, hits=1)
    return spec


def run_cfg(task: str, robot: Path | str) -> RunCfg:
    """Return a run's settings with ``robot`` on all places."""
    cfg, _ = resolve({}, {"task": {"name": task}, "env": {"robots": str(robot)}})
    return cfg


def write(spec: mujoco.MjSpec, path: Path) -> Path:
    spec.compile()
    path.write_text(spec.to_xml())
    return path


@pytest.fixture
def file(tmp_path) -> Path:
    return write(go1_spec(), tmp_path / "like_go1.xml")


def assert_same_bodies(robot: RobotCfg, other: RobotCfg) -> None:
    """Assert equal masses, inertias, places and ranges. Files have six significant digits."""
    pairs = [(robot.trunk, other.trunk)]
    for leg, other_leg in zip(robot.legs, other.legs, strict=True):
        pairs += zip(leg.inertials, other_leg.inertials, strict=True)
        np.testing.assert_allclose(leg.hip_pos, other_leg.hip_pos, rtol=1e-5)
        assert leg.side == pytest.approx(other_leg.side, rel=1e-5)
        np.testing.assert_allclose(leg.joint_range, other_leg.joint_range, rtol=1e-5)
    for link, other_link in pairs:
        assert link.mass == pytest.approx(other_link.mass, rel=1e-5)
        np.testing.assert_allclose(link.com, other_link.com, atol=SIX_DECIMALS)
        np.testing.assert_allclose(link.inertia, other_link.inertia, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(robot.link_lengths, other.link_lengths, rtol=1e-5)
    assert robot.foot_radius == pytest.approx(other.foot_radius)
    np.testing.assert_allclose(robot.torque_limit, other.torque_limit, rtol=1e-5)


def test_a_file_of_the_go1_is_a_go1(file):
    robot = read_robot_file(file).cfg
    assert robot.name == "like_go1"
    assert_same_bodies(robot, GO1)
    assert robot.joint_pos == pytest.approx(GO1.joint_pos, abs=2e-3)
    assert robot.stiffness == pytest.approx(25.0 / 15.2 * GO1.mass, rel=1e-3)
    assert robot.standing_height == pytest.approx(0.28, abs=0.01)


def test_signs_zero_angles_and_axes_of_the_file_do_not_matter(tmp_path):
    spec = go1_spec()
    for leg in LEGS:
        hip, thigh, calf = (spec.body(f"go1/{leg}_{joint}") for joint in LEG_JOINTS)
        # The hip's joint begins further back on its own axis, as ANYmal's does.
        hip.pos = hip.pos - (0.05, 0.0, 0.0)
        for geom in hip.geoms:
            geom.pos = geom.pos + (0.05, 0.0, 0.0)
        hip.ipos = hip.ipos + (0.05, 0.0, 0.0)
        thigh.pos = thigh.pos + (0.05, 0.0, 0.0)
        # Thighs are at 0.3 rad where the file's angle is zero, and turn the other way.
        thigh.quat = (math.cos(0.15), 0.0, math.sin(0.15), 0.0)
        joint = thigh.joints[0]
        joint.axis = (0.0, -1.0, 0.0)
        low, high = joint.range
        joint.range = (0.3 - high, 0.3 - low)
    robot = read_robot_file(write(spec, tmp_path / "turned.xml")).cfg
    assert_same_bodies(robot, GO1)


def test_a_scene_round_the_robot_changes_nothing(file):
    spec = go1_spec()
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0.0, 0.0, 1.0))
    marker = spec.worldbody.add_body(name="marker", mocap=True)
    marker.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=(0.1, 0.0, 0.0))
    spec.body("go1/trunk").quat = (0.7, 0.1, 0.2, 0.6)
    path = write(spec, file.parent / "scene.xml")
    assert read_robot_file(path).notes[0] == read_robot_file(file).notes[0]
    assert_same_bodies(read_robot_file(path).cfg, GO1)


def test_a_welded_part_with_constraints_stays_welded(tmp_path):
    spec = go1_spec()
    head = spec.body("go1/trunk").add_body(name="head", pos=(0.3, 0.0, 0.0))
    head.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=(0.05, 0.0, 0.0), mass=0.5)
    spec.add_exclude(bodyname1="head", bodyname2="go1/FL_thigh")
    weld = spec.add_equality(type=mujoco.mjtEq.mjEQ_WELD, objtype=mujoco.mjtObj.mjOBJ_BODY)
    weld.name1 = "head"
    weld.name2 = "world"
    robot = read_robot_file(write(spec, tmp_path / "head.xml"))
    assert robot.cfg.trunk.mass == pytest.approx(GO1.trunk.mass + 0.5, rel=1e-5)
    assert robot.notes[1:] == ("equality constraints, left out: 1",)


@pytest.mark.parametrize(
    ("gear", "limits", "torque"),
    [
        (9.0, {"ctrlrange": (-2.5, 2.5)}, 22.5),
        (-9.0, {"ctrlrange": (-3.0, 3.0), "forcerange": (-3.0, 2.0)}, 18.0),
    ],
)
def test_a_gear_multiplies_the_torque_limit(gear, limits, torque, tmp_path):
    spec = go1_spec()
    for actuator in spec.actuators:
        actuator.forcerange = (0.0, 0.0)
        actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_AUTO
        actuator.set_to_motor()
        actuator.gear[0] = gear
        for name, ends in limits.items():
            setattr(actuator, name, ends)
    robot = read_robot_file(write(spec, tmp_path / "geared.xml")).cfg
    assert robot.torque_limit == pytest.approx((torque,) * 3)


def test_numbers_without_a_place_are_told(tmp_path):
    spec = go1_spec()
    for leg in LEGS:
        spec.geom(f"go1/{leg}_foot").friction[0] = 0.4
        joint = spec.body(f"go1/{leg}_thigh").joints[0]
        joint.armature = 0.01
        joint.frictionloss = 0.2
        joint.limited = mujoco.mjtLimited.mjLIMITED_FALSE
    for leg in ("RL", "RR"):
        spec.body(f"go1/{leg}_calf").pos = (0.0, 0.0, -0.223)
    robot = read_robot_file(write(spec, tmp_path / "told.xml"))
    assert robot.notes[1:] == (
        "joints have armature 0.01, dry friction 0.2 at most, left out: motors are ideal",
        "feet have a friction of 0.4, left out: set env.foot_friction",
        "joints without limits turn by pi to either side",
        "legs differ by 0.010 m in length: each has their mean",
    )


def test_links_of_unequal_length_are_kept(tmp_path):
    spec = go1_spec()
    for leg in LEGS:
        spec.body(f"go1/{leg}_calf").pos = (0.0, 0.0, -0.15)
    robot = read_robot_file(write(spec, tmp_path / "short.xml")).cfg
    assert robot.link_lengths == pytest.approx((0.15, 0.213))
    thigh, calf = robot.legs[0].joint_pos[1:]
    below = 0.15 * math.sin(thigh - 0.05) + 0.213 * math.sin(thigh - 0.05 + calf)
    assert below == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("reach", [0.03, 0.12])
def test_a_robot_with_wide_calves_stands_on_its_feet(reach, tmp_path):
    spec = go1_spec()
    for leg in LEGS:
        shin = spec.body(f"go1/{leg}_calf").geoms[0]
        shin.size = (reach, 0.01, 0.12)
        shin.pos = (-reach, 0.0, -0.11)
    robot = read_robot_file(write(spec, tmp_path / "wide.xml"))
    assert robot.notes[1:] == ()
    assert robot.cfg.standing_height == pytest.approx(0.28, abs=0.01)
    for leg in robot.cfg.legs:
        (box,) = leg.shapes[2]
        assert box.pos[0] - box.size[0] == pytest.approx(-GO1.foot_radius)
        assert box.pos[2] - box.size[2] == pytest.approx(-GO1.link_lengths[1])


def test_wide_legs_have_the_motors_of_longer_ones(tmp_path):
    spec = go1_spec()
    for leg in LEGS:
        thigh = spec.body(f"go1/{leg}_thigh")
        thigh.pos = thigh.pos * (1.0, 2.0, 1.0)
    robot = read_robot_file(write(spec, tmp_path / "wide.xml")).cfg
    assert robot.legs[0].side == pytest.approx(0.16)
    as_long = 0.16 * 0.213 / 0.0955  # [m] a Go2's links, were they as slender
    assert robot.stiffness == pytest.approx(25.0 / 15.2 * GO1.mass * as_long / 0.213, rel=1e-3)


def test_a_robot_on_its_shins_is_told():
    wide = Shape("box", (0.02, 0.01, 0.1), (-0.02, 0.0, -0.12))
    legs = [leg._replace(shapes=(*leg.shapes[:2], (wide,))) for leg in GO1.legs]
    notes: list[str] = []
    stand(replace(GO1, legs=tuple(legs)), notes)
    assert notes == ["it stands on more than its feet: correct the calves' shapes"]


def test_the_data_are_written_for_correction_and_read_back(file, tmp_path, capsys):
    out = tmp_path / "corrected.yaml"
    assert main([str(file), "--out", str(out)]) == 0
    assert f"env.robots={out}" in capsys.readouterr().out
    corrected = read_robot(out)
    assert corrected.name == "corrected"
    assert corrected.legs == read_robot_file(file).cfg.legs
    out.write_text(out.read_text().replace("stiffness: ", "stiffness: 1"))
    assert read_robot(out).stiffness > 100.0


def test_corrections_are_not_overwritten(file, tmp_path, capsys):
    out = tmp_path / "corrected.yaml"
    out.write_text("stiffness: 1\n")
    assert main([str(file), "--out", str(out)]) == 2
    assert "exists, perhaps with corrections" in capsys.readouterr().err
    assert out.read_text() == "stiffness: 1\n"


def test_a_file_with_the_name_of_another_robot_is_to_be_renamed(file, tmp_path):
    other = file.rename(tmp_path / "go2.xml")
    with pytest.raises(ConfigError, match=r"go2.xml has the name of another robot; rename"):
        robots_of(str(other), 1)


def test_a_path_is_a_robot_in_a_scene(file):
    scene = build_scene(2, None, robots=["go1", str(file)])
    assert [robot.name for robot in scene.robots] == ["go1", "like_go1"]
    masses = scene.model.body_subtreemass
    ours, theirs = (masses[scene.model.body(f"robot{i}/trunk").id] for i in range(2))
    assert theirs == pytest.approx(ours, rel=1e-5)


def test_a_run_notices_a_change_in_an_included_file(file, tmp_path):
    text = file.read_text()
    start, end = text.index("<worldbody>"), text.index("</mujoco>")
    body = tmp_path / "body.xml"
    body.write_text(f"<mujoco>{text[start:end]}</mujoco>")
    file.write_text(f'{text[:start]}<include file="body.xml"/></mujoco>')
    cfg = run_cfg("go1_velocity", file)
    with restored_registries():
        digests = named_files.digests_of(cfg)
        file.write_text(file.read_text() + "<!-- the robot stays -->\n")
        assert named_files.digests_of(cfg) == digests
        body.write_text(body.read_text().replace('mass="0.898919"', 'mass="0.9"'))
        assert named_files.digests_of(cfg) != digests


def test_a_robot_without_a_gait_says_how_to_train_one(file):
    cfg = run_cfg("go1push_mid", file)
    with pytest.raises(
        ConfigError, match="like_go1 has no gait; train one .* its checkpoint here or in the"
    ):
        named_files.digests_of(cfg)


def _second_robot(spec: mujoco.MjSpec) -> None:
    body = spec.worldbody.add_body(name="crate", mass=1.0, inertia=(1.0, 1.0, 1.0))
    body.explicitinertial = True
    body.add_freejoint()


def _base_in_the_world(spec: mujoco.MjSpec) -> None:
    for name in ("FL", "FR"):
        leg = spec.worldbody.add_body(name=f"{name} alone", mass=1.0, inertia=(1.0, 1.0, 1.0))
        leg.explicitinertial = True
        leg.add_joint(axis=(1.0, 0.0, 0.0))
    spec.delete(spec.body("go1/trunk"))


def _hinge_in_place_of_the_free_joint(spec: mujoco.MjSpec) -> None:
    trunk = spec.body("go1/trunk")
    spec.delete(trunk.joints[0])
    trunk.add_joint(axis=(0.0, 0.0, 1.0))


def _wheels(spec: mujoco.MjSpec) -> None:
    for leg in LEGS:
        wheel = spec.body(f"go1/{leg}_calf").add_body(name=f"{leg} wheel", pos=(0.0, 0.0, -0.213))
        wheel.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=(0.05, 0.0, 0.0))
        wheel.add_joint(axis=(0.0, 1.0, 0.0))


def _no_limits(spec: mujoco.MjSpec) -> None:
    for actuator in spec.actuators:
        spec.delete(actuator)


def _no_feet(spec: mujoco.MjSpec) -> None:
    for leg in LEGS:
        spec.delete(spec.geom(f"go1/{leg}_foot"))


def _turned_axis(spec: mujoco.MjSpec) -> None:
    spec.body("go1/FL_thigh").joints[0].axis = (0.0, 0.0, 1.0)


def _knees_to_the_front(spec: mujoco.MjSpec) -> None:
    for leg in LEGS:
        spec.body(f"go1/{leg}_calf").joints[0].range = (0.9, 2.6)


def _trunk_in_millimetres(spec: mujoco.MjSpec) -> None:
    spec.body("go1/trunk").geoms[0].size = (188.0, 47.0, 57.0)


def _legs_in_millimetres(spec: mujoco.MjSpec) -> None:
    for leg in LEGS:
        spec.body(f"go1/{leg}_calf").pos = (0.0, 0.0, -213.0)


def _bare_trunk(spec: mujoco.MjSpec) -> None:
    for geom in spec.body("go1/trunk").geoms:
        spec.delete(geom)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_second_robot, "2 bodies of its world have joints"),
        (_base_in_the_world, r"\(FL alone, FR alone\); so the base is part of the world"),
        (_hinge_in_place_of_the_free_joint, "its base go1/trunk has joints"),
        (_wheels, "four legs with three hinges each.*FL_hip: 4"),
        (_no_limits, "FL_hip has no torque limit"),
        (_no_feet, "FL_calf has no sphere"),
        (_turned_axis, r"FL_thigh turns about \(0"),
        (_knees_to_the_front, "FL_calf cannot reach -1.50 rad"),
        (_bare_trunk, "its base has no shape"),
        (_trunk_in_millimetres, "a shape of go1/trunk is 376 m long; give a mesh in millimetres"),
        (_legs_in_millimetres, "its legs are 213.2 m long; give lengths in metres"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_unfit_robot_is_refused_in_one_line(change, message, tmp_path):
    spec = go1_spec()
    change(spec)
    with pytest.raises(ConfigError, match=message) as caught:
        read_robot_file(write(spec, tmp_path / "unfit.xml"))
    assert "\n" not in str(caught.value)


URDF = """<robot name="x"><link name="base">{inertial}</link><link name="leg">{inertial}
<collision><geometry><mesh filename="package://x/leg.stl"/></geometry></collision></link>
<joint name="hip" type="revolute"><parent link="base"/><child link="leg"/><axis xyz="1 0 0"/>
<limit lower="-1" upper="1" effort="5" velocity="1"/></joint></robot>"""
INERTIAL = (
    '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/>'
    "</inertial>"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (URDF.format(inertial=INERTIAL), "it needs 4 to 12 driven wheels"),
        (URDF.format(inertial=""), "MuJoCo does not read it.*mass and inertia"),
        ("<robot", "MuJoCo does not read it"),
        ("", "MuJoCo does not read it"),
    ],
)
def test_a_urdf_that_is_no_quadruped_is_refused_in_one_line(text, message, tmp_path, capsys):
    path = tmp_path / "x.urdf"
    path.write_text(text)
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    with pytest.raises(ConfigError, match=message):
        read_robot_file(path)


def test_links_without_an_inertial_are_massless_in_a_urdf(tmp_path):
    shape = '<collision><geometry><box size="1 1 1"/></geometry></collision>'
    root = (
        f'<robot name="x"><link name="root">{shape}</link><joint name="fixed" type="fixed">'
        '<parent link="root"/><child link="base"/></joint>'
    )
    path = tmp_path / "x.urdf"
    path.write_text(URDF.format(inertial=INERTIAL).replace('<robot name="x">', root))
    assert read_maker_file(path).model.body_mass.sum() == 2.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "missing: FILE; example: mapush robot"),
        (["x.urdf", "--outt", "x.yaml"], "--outt"),
        (["x.stl"], "x.stl is missing or not a robot's file; name an MJCF"),
        (["{file}", "--out", "nowhere/x.yaml"], "nowhere/x.yaml must end with .yaml"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(words, message, file, capsys):
    assert main([word.format(file=file) for word in words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"env.robots: there is no file nowhere/x.urdf"):
        robots_of("nowhere/x.urdf", 1)


def test_meshes_of_a_ros_package_are_found_over_the_file(tmp_path):
    package = tmp_path / "rover_description"
    (package / "urdf").mkdir(parents=True)
    (package / "meshes").mkdir()
    corners = np.array([(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)], np.float32)
    faces = np.zeros(4, [("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("rest", "<u2")])
    faces["corners"] = corners[[(0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3)]]
    header = bytes(80) + len(faces).to_bytes(4, "little")
    (package / "meshes" / "base.stl").write_bytes(header + faces.tobytes())
    text = '<robot name="x"><link name="base">{}<collision><geometry><mesh filename="{}"/>{}'
    path = package / "urdf" / "rover.urdf"
    address = "package://rover_description/meshes/base.stl"
    joint = (
        '</geometry></collision></link><link name="wheel">{}</link><joint name="axle" '
        'type="continuous"><parent link="base"/><child link="wheel"/></joint></robot>'
    )
    path.write_text(text.format(INERTIAL, address, joint.format(INERTIAL)))
    assert read_maker_file(path).model.nmesh == 1
    assert not read_maker_file(path).notes

    path.write_text(text.format(INERTIAL, "package://other/base.stl", joint.format(INERTIAL)))
    assert read_maker_file(path).notes == ("meshes without a file, left out: base",)


@pytest.mark.parametrize(
    ("name", "reason"), [("30x", "the name must begin"), ("go2", "the name is taken")]
)
def test_names_that_robots_cannot_have_are_refused_before_writing(name, reason, file, capsys):
    out = file.parent / f"{name}.yaml"
    assert main([str(file), "--out", str(out)]) == 2
    assert reason in capsys.readouterr().err
    assert not out.exists()


def test_a_huge_mesh_that_collides_is_refused(file):
    with (file.parent / "huge.stl").open("wb") as mesh:
        mesh.truncate(2**34)
    text = file.read_text()
    text = text.replace("<worldbody>", '<asset><mesh file="huge.stl"/></asset><worldbody>', 1)
    geom = '<geom type="mesh" mesh="huge" contype="{}" conaffinity="0"/></body>'
    file.write_text(text.replace("</body>", geom.format(1), 1))
    with pytest.raises(ConfigError, match="the mesh huge collides and has more than 4 MiB"):
        read_robot_file(file)
    file.write_text(text.replace("</body>", geom.format(0), 1))
    assert_same_bodies(read_robot_file(file).cfg, GO1)  # the mesh is for drawing alone


def test_impossible_inertias_become_a_balls_and_are_told(file):
    text = file.read_text()
    name = text.index('name="go1/trunk"')
    start = text.index('diaginertia="', name)
    end = text.index('"', start + len('diaginertia="'))
    file.write_text(text[:start] + 'diaginertia="0.01 0.01 0.05' + text[end:])
    robot = read_robot_file(file)
    assert robot.notes[1:] == ("impossible moments of inertia, a ball's instead: go1/trunk",)
    assert robot.cfg.trunk.inertia == pytest.approx((0.07 / 3,) * 3 + (0.0,) * 3)


@pytest.mark.parametrize(
    ("share", "lengths"), [(0.6, (0.128, 0.12)), (2.0, (0.426, 0.4)), (1.0, (0.15, 0.3))]
)
def test_every_start_of_a_robot_with_other_legs_is_a_pose(share, lengths):
    robot = replace(GO1, link_lengths=lengths, standing_height=share * GO1.standing_height)
    poses = start_poses(Robots([robot]), 512)
    assert all(torch.isfinite(part).all() for part in poses)
    assert poses.pos[:, 2].amax() >= robot.standing_height + 0.1


def test_a_policy_names_its_robot_and_not_the_file(file):
    assert robot_names(str(file)) == "like_go1"
    assert robot_names(("go2", str(file))) == ("go2", "like_go1")


def test_the_stance_of_equal_links_is_the_go1s():
    assert nominal_angles("FL", GO1.link_lengths) == (0.1, 0.8, -1.5)
    assert nominal_angles("RR", GO1.link_lengths) == (-0.1, 1.0, -1.5)
