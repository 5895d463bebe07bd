"""Friction knows no direction: sliding, breakaway and traction over the compass, on both
simulators.
"""

import math

import mujoco
import numpy as np
import pytest
import torch

from mqe.config import ConfigError
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.sim.simulator import Simulator
from mqe.tasks.push import PushCfg
from mqe.world.objects import OBJECTS, ROBOT_FLOOR_FRICTION
from mqe.world.robots import ROBOTS
from mqe.world.robots.robot import LEGS
from mqe.world.scene import ARENA_HALF_SIZE, DECIMATION, PHYSICS_DT, Scene, build_scene, read_state
from tests.support.scenes import DEFAULT_JOINT_POS

GRAVITY = 9.81
ANGLES = torch.linspace(0.0, math.pi / 2, 7)
SPEED = 0.6  # [m/s]


def make_sim(name: str, scene: Scene, num_envs: int) -> Simulator:
    if name == "mujoco":
        return MujocoBatchSimulator(scene.model, num_envs, 1)
    pytest.importorskip("mujoco_warp")
    from mqe.sim.mujoco_warp import MujocoWarpSimulator

    return MujocoWarpSimulator(scene.model, num_envs, torch.device("cpu"))


def at_rest(name: str, sim_name: str) -> tuple[Simulator, Scene]:
    """7 worlds, an object on the floor and a robot out of the way."""
    scene = build_scene(1, OBJECTS[name])
    sim = make_sim(sim_name, scene, len(ANGLES))
    qpos = torch.tensor(scene.model.qpos0).repeat(len(ANGLES), 1)
    lowest = min(part.pos[2] - 0.5 * part.size[-1] for part in OBJECTS[name].geoms)
    qpos[:, :2] = -8.0
    qpos[:, 7:19] = torch.tensor(DEFAULT_JOINT_POS)
    qpos[:, scene.robot_qpos + 2] = -lowest
    everywhere = torch.ones(len(ANGLES), dtype=torch.bool)
    sim.write(
        everywhere,
        qpos.to(sim.data.qpos),
        torch.zeros_like(sim.data.qvel),
        torch.zeros_like(sim.data.mocap_pos),
    )
    sim.data.ctrl[:] = torch.tensor(DEFAULT_JOINT_POS)
    sim.step(20)
    return sim, scene


def center_of_mass(sim: Simulator, scene: Scene) -> torch.Tensor:
    """Return every object's centre of mass, (N, 2)."""
    start = scene.robot_qpos
    (x, y, _) = scene.model.body("object").ipos
    pose = sim.data.qpos[:, start : start + 7].double()
    yaw = 2.0 * torch.atan2(pose[:, 6], pose[:, 3])
    turned = torch.stack((x * yaw.cos() - y * yaw.sin(), x * yaw.sin() + y * yaw.cos()), dim=1)
    return pose[:, :2] + turned


# Warp's kernels on a CPU are dear: two boxes that make one object, and a cylinder.
# An object with its weight on one corner turns as it slides.
STRAIGHT = [name for name in OBJECTS if name != "loaded"]
SLIDING = [
    *((name, "mujoco") for name in STRAIGHT),
    *(pytest.param(name, "warp", marks=pytest.mark.slow) for name in ("tblock", "cylinder")),
]


@pytest.mark.parametrize(("name", "sim_name"), SLIDING)
def test_a_sliding_object_is_braked_alike_in_every_direction(name, sim_name):
    """A body with speed v slides v^2 / (2 mu g), straight on."""
    sim, scene = at_rest(name, sim_name)
    friction = float(scene.model.pair_friction[0, 0])
    ahead = torch.stack((ANGLES.cos(), ANGLES.sin()), dim=1)
    sim.data.qvel[:, scene.robot_qvel : scene.robot_qvel + 2] = (SPEED * ahead).to(sim.data.qvel)
    start = center_of_mass(sim, scene)
    sim.step(math.ceil(1.2 * SPEED / (friction * GRAVITY) / PHYSICS_DT))
    way = center_of_mass(sim, scene) - start
    sim.close()
    braking = SPEED**2 / (2.0 * GRAVITY * way.norm(dim=1)) / friction
    assert float((braking - 1.0).abs().max()) < 0.03
    veer = torch.rad2deg(torch.atan2(way[:, 1], way[:, 0]) - ANGLES)
    assert float(veer.abs().max()) < 1.0


@pytest.mark.parametrize("share, moves", [(0.97, False), (1.03, True)])
@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_breaks_away_at_its_friction_in_every_direction(name, share, moves):
    sim, scene = at_rest(name, "mujoco")
    force = share * float(scene.model.pair_friction[0, 0]) * OBJECTS[name].mass * GRAVITY
    body = scene.model.body("object")
    push = torch.stack((force * ANGLES.cos(), force * ANGLES.sin()), dim=1).double()
    depth = 0.25 + float(body.ipos[2])  # applied at the floor, or it would tip
    sim.data.xfrc_applied[:, body.id, :2] = push
    sim.data.xfrc_applied[:, body.id, 3:5] = torch.stack(
        (depth * push[:, 1], -depth * push[:, 0]), dim=1
    )
    sim.step(200)
    before = sim.data.qvel[:, scene.robot_qvel : scene.robot_qvel + 2].norm(dim=1)
    sim.step(200)
    gained = sim.data.qvel[:, scene.robot_qvel : scene.robot_qvel + 2].norm(dim=1) - before
    # [m/s] in the second that was.
    expected = max(share - 1.0, 0.0) * force / share / OBJECTS[name].mass
    assert bool((gained > 0.5 * expected).all()) if moves else bool((gained < 0.01).all())
    sim.close()


def test_sliding_feet_are_held_back_alike_in_every_direction():
    """For every sliding foot, friction is mu times the normal force, opposite to its velocity."""
    model = build_scene(1, None).model
    feet = {model.geom(f"robot0/{leg}_foot").id for leg in LEGS}
    seen = 0
    for angle in ANGLES.tolist():
        data = mujoco.MjData(model)
        data.qpos[2] = 0.33
        data.qpos[7:] = DEFAULT_JOINT_POS
        data.ctrl[:] = DEFAULT_JOINT_POS
        mujoco.mj_step(model, data, 200)
        data.qvel[:2] = 2.0 * math.cos(angle), 2.0 * math.sin(angle)
        for _ in range(DECIMATION):
            mujoco.mj_step(model, data)
        mujoco.mj_forward(model, data)
        for k in range(data.ncon):
            contact = data.contact[k]
            if not feet & {int(contact.geom1), int(contact.geom2)}:
                continue
            force = np.zeros(6)
            mujoco.mj_contactForce(model, data, k, force)
            assert np.linalg.norm(force[1:3]) == pytest.approx(
                ROBOT_FLOOR_FRICTION * force[0], rel=0.03
            )
            seen += 1
    assert seen > 14


HEAD = 0.29  # [m] a Go1's foremost face, ahead of its trunk's origin
OVERLAP = 1e-4  # [m] by which two bodies are pressed together
# A head far ahead of the centre of mass gives way more easily to the side than up, so that
# friction, which is solved together with the motion of a physics step, does not point straight
# back.
ASIDE = math.radians(20.0)


def pressed(touched: str) -> tuple[Scene, torch.Tensor]:
    """Return a scene and its qpos (7, nq): a robot in the air, its head against an object or
    another robot.
    """
    scene = build_scene(2, OBJECTS["cuboid"])
    qpos = torch.tensor(scene.model.qpos0).repeat(len(ANGLES), 1)
    for k in range(2):
        qpos[:, 19 * k : 19 * k + 3] = torch.tensor([0.0, 5.0 * k, 3.0])
        qpos[:, 19 * k + 7 : 19 * (k + 1)] = torch.tensor(DEFAULT_JOINT_POS)
    qpos[:, scene.robot_qpos : scene.robot_qpos + 3] = torch.tensor([5.0, 5.0, 3.0])
    if touched == "object":
        qpos[:, scene.robot_qpos : scene.robot_qpos + 2] = torch.tensor([HEAD + 0.6 - OVERLAP, 0.0])
    else:
        # Turned round.
        qpos[:, 19:26] = torch.tensor([2 * HEAD - OVERLAP, 0.0, 3.0, 0.0, 0.0, 0.0, 1.0])
    return scene, qpos


def friction_between(scene: Scene, qpos: torch.Tensor) -> float:
    data = mujoco.MjData(scene.model)
    data.qpos[:] = qpos[0]
    mujoco.mj_forward(scene.model, data)
    assert data.ncon
    (friction,) = {float(data.contact[k].friction[0]) for k in range(data.ncon)}
    return friction


@pytest.mark.parametrize("sim_name", ["mujoco", "warp"])
@pytest.mark.parametrize("touched", ["object", "robot"])
def test_a_robot_that_slides_along_something_is_held_back_alike_in_every_direction(
    touched, sim_name
):
    """A head slides over an upright face: friction is mu times the normal force, opposite to its
    velocity.
    """
    scene, qpos = pressed(touched)
    sim = make_sim(sim_name, scene, len(ANGLES))
    qvel = torch.zeros_like(sim.data.qvel)
    ahead = torch.stack((ANGLES.cos(), ANGLES.sin()), dim=1)
    qvel[:, 1:3] = ahead.to(qvel)
    everywhere = torch.ones(len(ANGLES), dtype=torch.bool)
    sim.write(everywhere, qpos.to(sim.data.qpos), qvel, torch.zeros_like(sim.data.mocap_pos))
    sim.data.ctrl[:] = torch.tensor(DEFAULT_JOINT_POS).repeat(2)
    sim.step(1)
    state = read_state(sim, scene)
    force = (state.contact_force if touched == "object" else state.robot_contact_force)[
        :, 0
    ].double()
    sim.close()
    dragged = force[:, 1:]  # what the head slides over is dragged along
    normal = force[:, 0].abs()
    assert float(normal.min()) > 1.0
    torch.testing.assert_close(
        dragged.norm(dim=1), friction_between(scene, qpos) * normal, rtol=0.03, atol=0.0
    )
    assert float(torch.nn.functional.cosine_similarity(dragged, ahead).min()) > math.cos(ASIDE)


def test_a_robot_that_slides_along_a_wall_is_held_back_alike_in_every_direction():
    model = build_scene(1, None).model
    for angle in ANGLES.tolist():
        data = mujoco.MjData(model)
        data.qpos[:3] = (ARENA_HALF_SIZE - HEAD + OVERLAP, 0.0, 0.4)
        data.qpos[7:] = DEFAULT_JOINT_POS
        data.qvel[1:3] = math.cos(angle), math.sin(angle)
        mujoco.mj_step(model, data)
        net = np.zeros(3)
        friction = 0.0
        for k in range(data.ncon):
            force = np.zeros(6)
            contact = data.contact[k]
            mujoco.mj_contactForce(model, data, k, force)
            net += contact.frame.reshape(3, 3).T @ force[:3]
            friction = contact.friction[0]
        assert abs(net[0]) > 1.0
        assert np.linalg.norm(net[1:]) == pytest.approx(friction * abs(net[0]), rel=0.03)
        assert abs(net[1:] @ (math.cos(angle), math.sin(angle))) > math.cos(ASIDE) * np.linalg.norm(
            net[1:]
        )


@pytest.mark.parametrize("numbers", [(), (0.3,), (0.4, 0.02, 0.01)])
def test_the_floor_has_the_friction_of_feet_in_the_settings(numbers) -> None:
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


@pytest.mark.parametrize("numbers", [(), (0.4, 0.02)])
def test_a_friction_of_feet_has_one_number_or_three(numbers) -> None:
    with pytest.raises(ConfigError, match="env.foot_friction: .* must be one number .* or three"):
        EnvCfg(foot_friction=numbers)
