"""Robots of a vendor's MJCF: the same physics as in the vendor's own scene, under our names."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from mapush.extensions.isaacgym.engines import isaac_scene
from mapush.extensions.unitree.mjcf import VendorFile
from mqe.config import ConfigError
from mqe.notices import note
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.tasks.push import PushCfg
from mqe.viewer.looks import shown_model
from mqe.world.objects import OBJECTS, robot_object_friction
from mqe.world.robots import ROBOTS, robot_model
from mqe.world.robots.robot import LEG_JOINTS, LEGS, NUM_JOINTS
from mqe.world.scene import PHYSICS_DT, build_scene, take_physics_steps
from tests.support.vendor_mjcf import (
    FOOT_FRICTION,
    MESSAGE_LEGS,
    TORQUE_LIMITS,
    vendor_xml,
    write_checkout,
)

JOINTS = [f"{leg}_{joint}" for leg in LEGS for joint in LEG_JOINTS]
MESSAGES = [f"{leg}_{joint}" for leg in MESSAGE_LEGS for joint in LEG_JOINTS]

FLOOR = '<geom type="plane" size="0 0 0.05" friction="1" condim="3" margin="0"/>'

STAIRS = """
    <geom type="box" size="0.1 1 0.05" pos="1 0 0.05"/>
    <geom type="box" size="0.1 1 0.10" pos="1.2 0 0.1"/>
    <body name="trampoline"><geom type="box" size="1 1 0.01"/></body>
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    return write_checkout(tmp_path_factory.mktemp("vendor"))


def _vendors_walk(qpos: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the states in the vendor's own scene after each row of targets [rad], in message
    order. The vendor's bridge reads the sensors and writes torques.
    """
    spec = mujoco.MjSpec.from_string(vendor_xml(worldbody=FLOOR))
    for geom in spec.geoms:
        if geom.type == mujoco.mjtGeom.mjGEOM_MESH:
            spec.delete(geom)
    for mesh in spec.meshes:
        spec.delete(mesh)
    model = spec.compile()
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    robot = ROBOTS["go2"]
    states = []
    for row in targets:
        for _ in range(round(PHYSICS_DT / model.opt.timestep)):
            mujoco.mj_step1(model, data)
            q = data.sensordata[:NUM_JOINTS]
            dq = data.sensordata[NUM_JOINTS : 2 * NUM_JOINTS]
            data.ctrl[:] = robot.stiffness * (row - q) - robot.damping * dq
            mujoco.mj_step2(model, data)
        states.append(np.concatenate((data.qpos, data.qvel)))
    return np.array(states)


def test_motors_and_feet_act_as_in_the_vendors_own_scene(checkout: Path) -> None:
    """Sixty physics steps from a fall to the floor, with saturated motors."""
    scene = build_scene(1, None, robots="go2", model=str(checkout))
    assert (scene.substeps, scene.model.opt.timestep) == (2, 0.0025)
    sim = MujocoBatchSimulator(scene.model, 1, 1)
    qpos = np.concatenate(([0.0, 0.0, 0.31, 1.0, 0.0, 0.0, 0.0], ROBOTS["go2"].joint_pos))
    sim.data.qpos[0] = torch.as_tensor(qpos)
    generator = np.random.default_rng(0)
    targets = np.array(ROBOTS["go2"].joint_pos) + generator.uniform(-1.2, 1.2, (60, NUM_JOINTS))
    order = [JOINTS.index(name) for name in MESSAGES]
    vendor_states = _vendors_walk(qpos, targets[:, order])
    limits = np.array([TORQUE_LIMITS[joint] for joint in LEG_JOINTS] * len(LEGS))
    torque = sim._batch.bind("actuator_force")
    is_saturated = False
    for row, state in zip(targets, vendor_states, strict=True):
        take_physics_steps(sim, scene, torch.as_tensor(row).view(1, 1, -1))
        our_state = torch.cat((sim.data.qpos[0], sim.data.qvel[0])).numpy()
        np.testing.assert_allclose(our_state, state, atol=1e-7)
        is_saturated |= bool((np.abs(torque[0]) == limits).any())
    assert is_saturated


def test_contacts_have_the_numbers_of_the_file_but_the_objects_are_the_objects(checkout) -> None:
    scene = build_scene(2, OBJECTS["cuboid"], robots="go2", model=str(checkout))
    model = scene.model
    data = mujoco.MjData(model)
    obj = OBJECTS["cuboid"]
    data.qpos[2] = data.qpos[21] = 0.25
    data.qpos[7:19] = data.qpos[26:38] = ROBOTS["go2"].joint_pos
    data.qpos[19] = 3.0
    half = obj.geoms[0].size[0] / 2
    data.qpos[38:45] = (0.189 + half, 0.0, obj.spawn_height, 1.0, 0.0, 0.0, 0.0)
    mujoco.mj_forward(model, data)
    pairs = {}
    for contact in data.contact:
        names = sorted(model.geom(k).name for k in contact.geom)
        pairs[tuple(names)] = (contact.dim, contact.friction[0])
    feet = {value for names, value in pairs.items() if "floor" in names and "foot" in names[1]}
    assert feet == {(6, FOOT_FRICTION)}
    touch = robot_object_friction(sum(obj.friction) / 2)
    assert pairs[("", "object/0")] == (3, pytest.approx(touch))


@pytest.mark.parametrize("numbers", [(), (0.3,), (0.4, 0.02, 0.01)])
def test_our_floor_may_have_the_friction_of_a_vendors_feet(numbers, checkout: Path) -> None:
    given = {"foot_friction": numbers} if numbers else {}
    env = make_env(EnvCfg(2, 2, robots="go2", model="physical", **given), SimCfg(), PushCfg(), 0)
    model = env.scene.model
    data = mujoco.MjData(model)
    data.qpos[:] = env.sim.data.qpos[0]
    data.qpos[2] = data.qpos[21] = 0.25
    data.qpos[7:19] = data.qpos[26:38] = ROBOTS["go2"].joint_pos
    mujoco.mj_forward(model, data)
    floor = model.geom("floor").id
    pairs = {
        (contact.dim, *contact.friction[[0, 2, 3]].tolist())
        for contact in data.contact
        if floor in contact.geom and any("foot" in model.geom(k).name for k in contact.geom)
    }
    expected = numbers or (0.55,)
    assert pairs == {(6, *numbers) if len(numbers) == 3 else (3, *expected, 0.005, 0.0001)}
    env.close()

    theirs = [build_scene(1, None, robots="go2", model=str(checkout), **given).model.geom("floor")]
    theirs += [build_scene(1, None, robots="go2", model=str(checkout)).model.geom("floor")]
    assert [(floor.condim.item(), floor.friction.tolist()) for floor in theirs] == [
        (3, [1.0, 0.005, 0.0001])
    ] * 2


@pytest.mark.parametrize("numbers", [(), (0.4, 0.02)])
def test_a_friction_of_feet_has_one_number_or_three(numbers) -> None:
    with pytest.raises(ConfigError, match="env.foot_friction: .* must be one number .* or three"):
        EnvCfg(foot_friction=numbers)


def test_isaac_gym_refuses_friction_against_rolling() -> None:
    model = build_scene(1, None, foot_friction=(0.4, 0.02, 0.01)).model
    with pytest.raises(ConfigError, match="env.foot_friction: Isaac Gym has only sliding friction"):
        isaac_scene(model, 1, torch.device("cpu"))


def test_a_film_shows_it_with_the_looks_of_its_kind(checkout: Path) -> None:
    scene = build_scene(2, None, robots="go2", model=str(checkout))
    shown = shown_model(scene)
    assert shown.nq == scene.model.nq
    assert shown.ngeom > scene.model.ngeom


@pytest.mark.parametrize(("world", "count"), [(FLOOR, 0), (FLOOR + STAIRS, 3)])
def test_stairs_of_a_file_are_left_out_with_a_note(world, count, tmp_path, capsys) -> None:
    note.cache_clear()
    file = tmp_path / "scene.xml"
    file.write_text(vendor_xml(worldbody=world))
    robot_model(ROBOTS["go2"], str(file))
    said = capsys.readouterr().err
    assert said.endswith(f"things left out of its world: {count}.\n") if count else not said


def test_a_robot_of_a_file_keeps_stance_and_gait(checkout: Path) -> None:
    robot = robot_model(ROBOTS["go2"], str(checkout))
    assert robot.file == VendorFile(str(checkout / "unitree_robots" / "go2" / "go2.xml"))
    assert robot.joint_pos == ROBOTS["go2"].joint_pos
    assert robot.gait == ROBOTS["go2"].gait
    assert robot.motors is None


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('name="RL_calf"', 'name="shin"', "no body RL_calf"),
        ('joint="FR_hip_joint" ctrlrange', 'joint="FR_hip_joint" forcerange', "FR_hip_joint"),
        ('name="RR" size', 'name="foot" size', "no geom RR"),
        ('name="FL_thigh_joint" axis', 'name="FL_knee" axis', "FL_thigh_joint"),
        ("<mujoco", "<urdf", "not an MJCF"),
    ],
)
def test_a_file_of_another_form_is_one_line(old, new, reason, tmp_path: Path) -> None:
    file = tmp_path / "robot.xml"
    text = vendor_xml()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=reason) as error:
        build_scene(1, None, robots="go2", model=str(file))
    assert "\n" not in str(error.value)


def test_other_legs_and_other_robots_are_refused(checkout: Path, tmp_path: Path) -> None:
    longer = write_checkout(tmp_path, side=0.12)
    with pytest.raises(ConfigError, match="FL_thigh is at"):
        build_scene(1, None, robots="go2", model=str(longer))
    with pytest.raises(ConfigError, match=r"no unitree_robots/go1/go1.xml.*\(here: go2\)"):
        build_scene(1, None, robots="go1", model=str(checkout))
    with pytest.raises(ConfigError, match="did you mean physical"):
        EnvCfg(model="phisical")
