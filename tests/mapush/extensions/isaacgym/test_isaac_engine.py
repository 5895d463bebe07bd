"""Isaac Gym's engine over fake tensors: names, orders, frames, materials. No test of Isaac Gym."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from xml.etree import ElementTree

import mujoco
import numpy as np
import pytest
import torch

from mapush.extensions.isaacgym import engines, neutral_model
from mapush.extensions.isaacgym.worker.frames import changed_rows, from_root_states, to_root_states
from mapush.extensions.isaacgym.worker.protocol import MAX_ROWS, Sizes, layout
from mapush.extensions.isaacgym.worker.serve import Refused
from mqe import host_memory
from mqe.config import ConfigError
from mqe.registry import SimCfg, make_simulator
from mqe.world.objects import OBJECTS
from mqe.world.robots import ROBOTS
from mqe.world.scene import build_scene
from tests.support.rounding import FEW_STEPS

SCENE = build_scene(2, OBJECTS["cuboid"])
MODEL = SCENE.model
N = 3


@pytest.fixture
def engine(monkeypatch):
    """The engine with two robots and a box, in this process. ``engine._gym`` is its fake."""
    return _engine(monkeypatch, MODEL)


def _engine(monkeypatch, model):
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("fake_isaacgym")))
    for name in (
        "isaacgym",
        "isaacgym.gymapi",
        "isaacgym.gymtorch",
        "mapush.extensions.isaacgym.worker.isaac_gym",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("mapush.extensions.isaacgym.worker.isaac_gym")
    sizes = Sizes(N, model.nq, model.nv, model.nu, model.nmocap, model.nbody, model.nsensordata, 0)
    record = np.zeros(1, layout(sizes, "float32"))
    views = {name: record[name][0] for name in record.dtype.names or ()}
    views["qpos"][:] = model.qpos0
    return module.make_engine(engines.isaac_scene(model, N, torch.device("cpu")), sizes, views)


def _dof(engine, env: int, robot: int, joint: str) -> torch.Tensor:
    """Look up a joint in the fake's own memory, by its name."""
    actor = next(a for a in engine._gym.actors if (a.group, a.name) == (env, f"robot{robot}/trunk"))
    return engine._gym.dof.view(N, -1, 2)[env, actor.first_joint + actor.asset.joints.index(joint)]


def test_joints_and_quaternions_lie_where_isaac_gym_has_them(engine) -> None:
    draw = np.random.default_rng(0)
    views = engine._views
    engine._scene["timestep"] = engine._gym.params.dt = 0.0
    qpos = draw.normal(size=views["qpos"].shape).astype(np.float32)
    for at in (3, 22, 41):
        qpos[:, at : at + 4] /= np.linalg.norm(qpos[:, at : at + 4], axis=1, keepdims=True)
    qvel = draw.normal(size=views["qvel"].shape).astype(np.float32)
    views["qpos"][:] = qpos
    views["qvel"][:] = qvel
    engine.step(1, 0)
    np.testing.assert_allclose(views["qpos"], qpos, atol=FEW_STEPS)
    np.testing.assert_allclose(views["qvel"], qvel, atol=1e-5)
    names = [
        name.rpartition("/")[2]
        for name in (MODEL.joint(int(j)).name for j in MODEL.actuator_trnid[:, 0])
    ]
    # Ours; theirs begins with FL_calf.
    assert names[:4] == [
        "FL_hip",
        "FL_thigh",
        "FL_calf",
        "FR_hip",
    ]
    for robot, k in ((0, 1), (1, 5), (1, 11)):
        theirs = _dof(engine, 2, robot, names[k])
        assert float(theirs[0]) == qpos[2, 19 * robot + 7 + k]
        assert float(theirs[1]) == qvel[2, 18 * robot + 6 + k]
    box = engine._gym.root[
        next(a.index for a in engine._gym.actors if (a.group, a.name) == (1, "object"))
    ]
    assert box[3:7].tolist() == qpos[1, [42, 43, 44, 41]].tolist()


def test_worlds_lie_apart_and_their_states_are_relative_to_them(engine) -> None:
    engine._scene["timestep"] = engine._gym.params.dt = 0.0
    engine._views["qpos"][:, 41 - 3 : 41] = [1.0, -2.0, 0.5]  # the box
    engine.step(1, 0)
    origins = engine._origins
    side = 2 * (12.1 + 1.0)  # walls, and a margin
    np.testing.assert_allclose(origins, [[0.0] * 3, [side, 0.0, 0.0], [0.0, side, 0.0]])
    positions = engine._gym.positions().numpy()
    actors = engine._gym.actors
    boxes = [actor.index for actor in actors if actor.name == "object"]
    np.testing.assert_allclose(positions[boxes], origins + [1.0, -2.0, 0.5], atol=1e-5)
    np.testing.assert_allclose(engine._views["qpos"][:, 38:41], [[1.0, -2.0, 0.5]] * N, atol=1e-5)
    # Each box stands between the walls of its own world.
    for world, box in enumerate(boxes):
        ids = [a.index for a in actors if (a.group, a.name) == (world, "wall")]
        walls = positions[ids] - origins[world]
        np.testing.assert_allclose(walls, np.array(engine._scene["walls"])[:, :3], atol=1e-5)
        assert (positions[ids, :2].min(axis=0) < positions[box, :2]).all()
        assert (positions[box, :2] < positions[ids, :2].max(axis=0)).all()


@pytest.mark.parametrize("offset", [[5.0, 0.0], [0.0, -0.02]])
def test_root_states_in_another_frame_are_found_before_the_first_step(engine, offset) -> None:
    prepare = engine._gym.prepare_sim

    def prepare_elsewhere(sim) -> None:
        prepare(sim)
        last = max(actor.index for actor in engine._gym.actors if actor.name == "object")
        engine._gym.root[last, :2] += torch.tensor(offset)

    engine._gym.prepare_sim = prepare_elsewhere
    with pytest.raises(Refused, match="root states are in another frame than its actors' poses"):
        engine.step(1, 0)


def test_only_worlds_that_the_host_changed_are_written(engine) -> None:
    engine.step(4, 0)
    before = engine._gym.root.clone()
    engine._gym.root[:, 2] += 0.25  # what physics did meanwhile, unseen
    engine._views["qvel"][1, 0] = 2.0
    engine.step(1, 0)
    moved = engine._gym.root[engine._root_ids[:, 0]]
    assert (moved[:, 2] - before[engine._root_ids[:, 0], 2]).tolist() == pytest.approx(
        [0.25, 0.0, 0.25], abs=FEW_STEPS
    )
    assert moved[:, 7].tolist() == [0.0, 2.0, 0.0]


def test_motors_follow_the_scenes_law(engine) -> None:
    views = engine._views
    views["qpos"][:, 7:19] = 0.1
    views["qvel"][:, 6:18] = 0.5
    views["targets"][:] = 0.0
    views["targets"][0, :, 1] = 0.3  # FL_thigh
    views["targets"][0, :, 2] = 9.0  # FL_calf: beyond its limit
    engine.step(1, 1)
    actor = engine._gym.actors[0]
    torque = dict(zip(actor.asset.joints, engine._gym.torque[:12].tolist(), strict=True))
    go1 = ROBOTS["go1"]
    assert torque["FL_thigh"] == pytest.approx(go1.stiffness * 0.2 - go1.damping * 0.5, rel=1e-5)
    assert torque["FL_hip"] == pytest.approx(-go1.stiffness * 0.1 - go1.damping * 0.5, rel=1e-5)
    assert torque["FL_calf"] == go1.torque_limit[2]
    assert views["ctrl"][0, 2] == 9.0
    assert (actor.drives["stiffness"] == 0).all()
    assert (actor.drives["damping"] == 0).all()


def test_physx_averages_materials_to_the_scenes_friction(engine) -> None:
    pairs = np.repeat(MODEL.pair_friction[None], N, axis=0)
    pairs[:, 0, :2] = np.array([0.30, 0.325, 0.35])[:, None]
    geoms = np.repeat(MODEL.geom_friction[None], N, axis=0)
    box = MODEL.geom("object/0").id
    geoms[:, box, 0] = [0.75, 0.775, 0.80]
    engine.set_field("pair_friction", pairs)
    engine.set_field("geom_friction", geoms)
    engine.step(1, 0)
    gym = engine._gym
    floor = gym.ground.static_friction
    assert floor == pytest.approx(0.1)
    for env, (on_floor, on_robot) in enumerate(((0.30, 0.75), (0.325, 0.775), (0.35, 0.80))):
        frictions = {
            actor.name: actor.shapes[0].friction for actor in gym.actors if actor.group == env
        }
        assert (frictions["object"] + floor) / 2 == pytest.approx(on_floor)
        assert (frictions["object"] + frictions["robot0/trunk"]) / 2 == pytest.approx(on_robot)
    filters = [actor.filter for actor in gym.actors if actor.group == 0]
    assert filters[0] & filters[1] == 0  # robots meet each other
    assert filters[0] & filters[0]  # and not themselves
    assert filters[2] == 0


@pytest.mark.parametrize(
    ("field", "change", "says"),
    [
        (
            "geom_friction",
            lambda world_values: world_values[1, MODEL.geom("floor").id].__iadd__(0.1),
            "one ground for all worlds",
        ),
        ("pair_friction", lambda world_values: world_values.__imul__(1.5), "one number"),
        ("geom_size", lambda world_values: None, "no geom_size of their own"),
    ],
)
def test_what_physx_cannot_have_is_refused(engine, field: str, change, says: str) -> None:
    for name in {"geom_friction", "pair_friction", field}:
        world_values = np.repeat(getattr(MODEL, name)[None], N, axis=0)
        if name == field:
            change(world_values)
        if field == "geom_size" and name == field:
            with pytest.raises(Refused, match=says):
                engine.set_field(name, world_values)
            return
        engine.set_field(name, world_values)
    with pytest.raises(Refused, match=says):
        engine.step(1, 0)


def test_masses_of_trunks_and_objects_are_scaled_with_their_inertia(engine) -> None:
    masses = np.repeat(MODEL.body_mass[None], N, axis=0)
    masses[2, MODEL.body("object").id] *= 3.0
    masses[1, MODEL.body("robot1/trunk").id] *= 1.5
    engine.set_field("body_mass", masses)
    engine.step(1, 0)
    links = {(actor.group, actor.name): actor.links[0] for actor in engine._gym.actors}
    assert links[2, "object"].mass == pytest.approx(12.0)
    assert links[2, "object"].inertia.y.y == pytest.approx(3.0)
    assert links[0, "object"].mass == pytest.approx(4.0)
    assert links[1, "robot1/trunk"].mass == pytest.approx(1.5 * ROBOTS["go1"].trunk.mass)


def test_pushes_come_from_what_is_not_a_foot(engine) -> None:
    engine.step(1, 0)
    gym = engine._gym
    trunk, calf = (
        engine._gym.actors[1].first_link + list(engine._gym.actors[1].asset.links).index(name)
        for name in ("trunk", "FL_calf")
    )
    gym.net.view(N, -1, 3)[1, trunk] = torch.tensor([-30.0, 5.0, 0.0])
    gym.net.view(N, -1, 3)[1, calf] = torch.tensor([0.0, 0.0, 60.0])
    engine.step(1, 0)
    forces = engine._views["sensordata"].reshape(N, 3, 3)
    assert forces[1].tolist() == [[0.0, 0.0, 0.0], [30.0, -5.0, 0.0], [0.0, 0.0, 0.0]]


def test_kicks_reach_the_trunk_that_they_are_for(engine) -> None:
    engine._views["xfrc_applied"][2, MODEL.body("robot1/trunk").id, 1] = 40.0
    engine.step(1, 0)
    force = engine._gym.force.view(N, -1, 3)
    assert float(force[2, engine._gym.actors[1].first_link, 1]) == 40.0
    assert int((force != 0).sum()) == 1


def test_the_gpus_contact_pairs_follow_from_the_worlds() -> None:
    assert engines.contact_pairs(500, 2) == engines.LEAST_PAIRS
    assert engines.contact_pairs(8192, 3) == 1 << 22
    assert engines.contact_pairs(10**6, 4) == engines.MOST_PAIRS
    cpu = torch.device("cpu")
    assert engines.isaac_scene(MODEL, N, cpu)["contact_pairs"] == engines.LEAST_PAIRS


def test_a_turning_body_turns_alike_in_both_frames() -> None:
    # 90 degrees about y.
    pose = np.array([[1.0, 2.0, 3.0, math.sqrt(0.5), 0.0, math.sqrt(0.5), 0.0]])
    # Rolling about its own x, which points down.
    velocity = np.array([[4.0, 5.0, 6.0, 1.0, 0.0, 0.0]])
    states = to_root_states(pose, velocity)
    np.testing.assert_allclose(states[0, 3:7], [0.0, math.sqrt(0.5), 0.0, math.sqrt(0.5)])
    np.testing.assert_allclose(states[0, 10:], [0.0, 0.0, -1.0], atol=1e-12)
    again = from_root_states(states)
    np.testing.assert_allclose(again[0], pose)
    np.testing.assert_allclose(again[1], velocity, atol=1e-12)


def test_a_number_that_is_none_counts_as_unchanged() -> None:
    before = np.array([[1.0, np.nan], [2.0, 3.0]], dtype=np.float32)
    assert changed_rows(before.copy(), before).tolist() == [False, False]
    assert changed_rows(before + np.float32(1.0), before).tolist() == [True, True]


# The descriptions that it loads


@pytest.mark.parametrize("robot", sorted(ROBOTS))
@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_urdf_describes_the_bodies_of_the_scene(robot: str, name: str) -> None:
    model = build_scene(1, OBJECTS[name], robots=robot).model
    for tree in neutral_model.trees(model):
        text = neutral_model.urdf(model, tree)
        top = model.body(tree).id
        read = mujoco.MjModel.from_xml_string(_unfused(text))
        ours = [body for body in range(model.nbody) if model.body_rootid[body] == top]
        assert read.nbody == len(ours) + 1
        for k, body in enumerate(ours, start=1):
            assert read.body(k).name == model.body(body).name.rpartition("/")[2]
            assert read.body_mass[k] == pytest.approx(model.body_mass[body], rel=1e-9)
            np.testing.assert_allclose(read.body_ipos[k], model.body_ipos[body], atol=1e-9)
            np.testing.assert_allclose(_tensor(read, k), _tensor(model, body), atol=1e-9)
            if k > 1:
                np.testing.assert_allclose(read.body_pos[k], model.body_pos[body], atol=1e-12)
                first = read.joint(int(read.body_jntadr[k]))
                second = model.joint(int(model.body_jntadr[body]))
                np.testing.assert_allclose(first.axis, second.axis)
                np.testing.assert_allclose(first.range, second.range)
        touching = [
            geom
            for geom in range(model.ngeom)
            if model.geom_bodyid[geom] in ours and model.geom_contype[geom]
        ]
        assert read.ngeom == len(touching)
        for k, geom in enumerate(touching):
            np.testing.assert_allclose(read.geom_pos[k], model.geom_pos[geom], atol=1e-9)
            np.testing.assert_allclose(read.geom_size[k], model.geom_size[geom], atol=1e-9)


def _unfused(text: str) -> str:
    """Let MuJoCo keep a free base as a body, with its written inertia."""
    root = ElementTree.fromstring(text)
    options = ElementTree.SubElement(root, "mujoco")
    ElementTree.SubElement(
        options, "compiler", discardvisual="false", fusestatic="false", balanceinertia="false"
    )
    return ElementTree.tostring(root, encoding="unicode")


def _tensor(model: mujoco.MjModel, body: int) -> np.ndarray:
    axes = np.zeros(9)
    mujoco.mju_quat2Mat(axes, model.body_iquat[body])
    turn = axes.reshape(3, 3)
    return turn @ np.diag(model.body_inertia[body]) @ turn.T


def test_a_message_takes_a_control_step() -> None:
    assert MAX_ROWS >= 4


def test_a_crash_at_the_start_names_its_phase(engine, capsys) -> None:
    """The last words of a process are its output, so each phase has a line."""
    engine.step(1, 0)
    engine.step(1, 0)
    assert capsys.readouterr().err.splitlines() == [
        "Isaac Gym makes the ground",
        f"Isaac Gym makes {N} worlds",
        "Isaac Gym prepares the simulation",
        "Isaac Gym is prepared",
    ]


def test_isaac_gym_refuses_friction_against_rolling() -> None:
    model = build_scene(1, None, foot_friction=(0.4, 0.02, 0.01)).model
    with pytest.raises(ConfigError, match="env.foot_friction: Isaac Gym has only sliding friction"):
        engines.isaac_scene(model, 1, torch.device("cpu"))
    model = build_scene(1, None, ground="kerbs").model
    with pytest.raises(ConfigError, match="env.ground: Isaac Gym has no kerbs"):
        engines.isaac_scene(model, 1, torch.device("cpu"))


def test_worlds_beyond_the_free_memory_are_refused_by_their_pairs(monkeypatch) -> None:
    monkeypatch.setenv("MAPUSH_ISAAC_PYTHON", sys.executable)
    monkeypatch.setattr(host_memory, "host_memory", lambda: 8 * 2**30)
    with pytest.raises(ConfigError, match=r"env.num_envs=10000 takes 24.\d GiB, .* to \d+$"):
        make_simulator(SimCfg("isaacgym", "cpu"), MODEL, 10_000)
