"""Shapes per world: drawn from the seed or held out, and simulated like separately compiled
models.
"""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import mujoco
import numpy as np
import pytest
import torch
from torch import tensor

from mqe.config import ConfigError
from mqe.env.environment import MultiAgentEnv
from mqe.registry import EnvCfg, SimCfg, make_env, make_simulator
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.tasks import push
from mqe.tasks.push import PushCfg
from mqe.tasks.push.features import PushConstants, SceneFeatures
from mqe.world.objects import OBJECTS, Footprint
from mqe.world.scene import build_scene, sliding_force
from mqe.world.shapes import (
    DRAWN_FRICTION,
    FAMILIES,
    HEIGHT,
    common_object,
    draw_shapes,
    held_out_shapes,
    make_shape,
    shape_fields,
)
from mqe.world.streams import Streams
from tests.mqe.tasks.test_mirror import scenes
from tests.support.rounding import FEW_STEPS

TASK = PushCfg(observation="sets", shapes="drawn", spawn="separated", decision_period=5)


def drawn(num_envs: int, seed: int = 0, first: int = 0):
    return draw_shapes(Streams(seed, num_envs, "cpu", first), 2)


def make(sim: str = "mujoco", num_envs: int = 3, task: PushCfg = TASK) -> MultiAgentEnv:
    cfg = SimCfg(name=sim, device="cpu", num_threads=1)
    return make_env(EnvCfg(num_envs, 2), cfg, task, 0)


def test_a_corner_of_two_boxes_by_hand():
    """3 kg in all: 2 kg in a 1.0 by 0.4 m box, and 1 kg in a 0.4 by 0.5 m box on its left end."""
    shape = make_shape("L", [(0.0, 0.0, 1.0, 0.4), (-0.3, 0.45, 0.4, 0.5)], 3.0, 0.5)
    mass, center, inertia = shape.inertia()
    assert mass == pytest.approx(3.0)
    assert [geom.mass for geom in shape.geoms] == pytest.approx([2.0, 1.0])
    assert center.tolist() == pytest.approx([-0.1, 0.15, 0.0])
    box_inertia = 2.0 / 12.0 * (1.0**2 + 0.4**2) + 1.0 / 12.0 * (0.4**2 + 0.5**2)
    arms = 2.0 * (0.1**2 + 0.15**2) + 1.0 * (0.2**2 + 0.3**2)
    assert inertia[2, 2] == pytest.approx(box_inertia + arms)
    assert shape.outline == ((-0.5, -0.2), (0.5, -0.2), (0.5, 0.7), (-0.5, 0.7))


def test_drawn_shapes_depend_on_seed_and_world_only():
    shapes = drawn(300)
    assert drawn(10, first=5) == shapes[5:15]
    assert drawn(3, seed=1) != shapes[:3]
    assert {shape.name for shape in shapes} == set(FAMILIES)
    masses = [shape.mass for shape in shapes]
    frictions = [shape.friction[0] for shape in shapes]
    for values, (low, high) in ((masses, (2.0, 20.0)), (frictions, DRAWN_FRICTION)):
        assert low <= min(values) < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < max(values) <= high
    assert abs(np.corrcoef(masses, frictions)[0, 1]) < 0.2


def test_a_disc_is_round_and_stands_on_the_box_in_it():
    disc = make_shape("disc", FAMILIES["disc"](1.0, 0.7, 0.3, 0.4), 12.0, 0.5)
    box, cylinder = disc.geoms
    assert cylinder.size == pytest.approx((1.6, HEIGHT))
    assert math.hypot(*box.half_extents) == pytest.approx(0.97 * 1.6)
    angles = torch.arange(24) * math.pi / 12
    rays = torch.stack((angles.cos(), angles.sin()), dim=-1)
    footprint = Footprint(disc)
    assert footprint.distance(2.0 * rays).tolist() == pytest.approx([0.4] * 24)
    torch.testing.assert_close(footprint.towards(2.0 * rays), -rays, rtol=0.0, atol=1e-5)
    mass, center, inertia = disc.inertia()
    assert mass == 12.0
    assert center.tolist() == [0.0, 0.0, 0.0]
    assert inertia[2, 2] == pytest.approx(0.5 * 12.0 * 1.6**2)
    assert disc.mirror_signs == (1.0, -1.0)


def test_a_worlds_disc_has_floor_under_its_box_alone():
    """The model of all worlds has three boxes, and a cylinder that nothing stands on."""
    disc = make_shape("disc", FAMILIES["disc"](1.0, 0.7, 0.3, 0.4), 12.0, 0.5)
    scene = build_scene(1, common_object([disc, BAR]))
    assert len(scene.object_geoms) == 4
    assert len(scene.object_floor_pairs) == 3
    for name, values in shape_fields(scene, [disc, BAR]).items():
        getattr(scene.model, name)[:] = values[0].numpy()
    data = mujoco.MjData(scene.model)
    data.joint("object/root").qpos[:2] = 4.0
    for _ in range(200):
        mujoco.mj_step(scene.model, data)
    floor = scene.model.geom("floor").id
    touching = {int(contact.geom[contact.geom != floor][0]) for contact in data.contact}
    assert set(scene.object_geoms) & touching == {scene.object_geoms[0]}
    assert data.body("object").xpos[2] == pytest.approx(0.25, abs=2e-3)


def test_parts_of_a_world_are_bounded_and_rub_like_those_of_its_own_model():
    disc = make_shape("disc", FAMILIES["disc"](1.0, 0.7, 0.3, 0.4), 12.0, 0.5)
    corner = make_shape("L", FAMILIES["L"](1.0, 0.7, 0.3, 0.4), 12.0, 0.4)
    scene = build_scene(1, common_object([disc, corner]))
    fields = shape_fields(scene, [disc, corner])
    for world, (shape, slots) in enumerate(((disc, (0, 3)), (corner, (0, 1)))):
        own = build_scene(1, shape)
        geoms = [scene.object_geoms[slot] for slot in slots]
        for name in ("geom_size", "geom_pos", "geom_rbound", "geom_aabb", "geom_friction"):
            expected = getattr(own.model, name)[own.object_geoms]
            assert fields[name][world, geoms].numpy() == pytest.approx(expected, abs=1e-12), name
        friction = fields["pair_friction"][world, scene.object_floor_pairs].numpy()
        expected = own.model.pair_friction[own.object_floor_pairs[:1]]
        assert friction == pytest.approx(np.repeat(expected, len(friction), axis=0))


BAR = make_shape("bar", [(0.0, 0.0, 0.9, 0.2)], 3.0, 0.5)


@pytest.mark.parametrize("shapes", [drawn(50), [BAR, *drawn(20)]], ids=["drawn", "bar"])
def test_parts_have_places_of_their_own_in_the_simulator(shapes):
    """The shared model has its parts elsewhere, some in the body's own frame, a bar's all there."""
    scene = build_scene(1, common_object(shapes))
    assert not scene.model.geom_pos[scene.object_geoms].any(axis=1).all()
    fields = shape_fields(scene, shapes)
    data = mujoco.MjData(scene.model)
    body = scene.model.body("object").id
    for world, shape in enumerate(shapes):
        for name, values in fields.items():
            getattr(scene.model, name)[:] = values[world].numpy()
        mujoco.mj_forward(scene.model, data)
        for geom, part in zip(scene.object_geoms, shape.geoms, strict=False):
            place = data.geom_xpos[geom] - data.xpos[body]
            assert place == pytest.approx(np.array(part.pos), abs=1e-9)
            assert data.geom_xmat[geom].reshape(3, 3) == pytest.approx(np.eye(3), abs=1e-9)
        _, center, _ = shape.inertia()
        assert data.xipos[body] - data.xpos[body] == pytest.approx(center, abs=1e-9)


def test_drawn_shapes_slide_at_forces_of_a_range_and_are_of_the_kinds_named():
    kinds = ["cuboid", "beam", "beam", "T"]
    shapes = draw_shapes(Streams(0, 400, "cpu", 0), 2, (30.0, 60.0), kinds)
    forces = [sliding_force(shape) for shape in shapes]
    assert 30.0 <= min(forces) < 31.0
    assert 59.0 < max(forces) <= 60.0
    beams = [shape for shape in shapes if shape.name == "beam"]
    assert len(beams) == pytest.approx(200, abs=30)
    assert {beam.geoms[0].size for beam in beams} == {OBJECTS["beam"].geoms[0].size}
    assert {shape.name for shape in shapes} == set(kinds)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "disc"])
def test_boxes_of_a_family_touch_and_do_not_overlap(family):
    for shape in [shape for shape in drawn(300) if shape.name == family] + held_out_shapes():
        for one, other in combinations(shape.geoms, 2):
            gaps = [
                abs(one.pos[k] - other.pos[k]) - 0.5 * (one.size[k] + other.size[k]) for k in (0, 1)
            ]
            assert max(gaps) >= -1.1e-3  # held-out shapes are in whole millimetres
        for part in shape.geoms[1:]:
            assert float(Footprint(shape).distance(tensor(part.pos[:2]))) == 0.0
        points = Footprint(shape).points[0]
        assert float(Footprint(shape).distance(points).max()) < FEW_STEPS


def test_held_out_shapes_are_twenty_of_all_families_and_none_is_drawn():
    shapes = held_out_shapes()
    assert len(shapes) == 20
    assert {shape.name.rstrip("0123456789") for shape in shapes} == set(FAMILIES) - {"slat", "disc"}
    lengths = {geom.size for shape in drawn(300) for geom in shape.geoms}
    assert not lengths & {geom.size for shape in shapes for geom in shape.geoms}


def test_a_world_moves_as_the_model_of_its_own_shape():
    """The object lies against a robot, in the shared model and in the model with the shape compiled
    in.
    """
    env = make()
    env.reset()
    put_objects_against_robots(env)
    qpos = env.sim.data.qpos.clone()
    qvel = env.sim.data.qvel.clone()
    env.sim.step(20)
    for world, shape in enumerate(drawn(3)):
        alone = MujocoBatchSimulator(build_scene(2, shape).model, 1, 1)
        alone.data.qpos[0] = qpos[world]
        alone.data.qvel[0] = qvel[world]
        alone.step(20)
        assert float((alone.data.qpos[0, 38:40] - qpos[world, 38:40]).norm()) > 1e-3
        alone_qpos = alone.data.qpos[0]
        torch.testing.assert_close(env.sim.data.qpos[world], alone_qpos, rtol=0.0, atol=1e-5)
    env.close()


def put_objects_against_robots(env: MultiAgentEnv) -> None:
    """Put each world's object against the first robot's front or back."""
    for world, shape in enumerate(drawn(env.num_envs)):
        object_qpos = env.sim.data.qpos[world, 38:45]
        object_qpos[:2] = env.sim.data.qpos[world, :2]
        object_qpos[0] += 0.5 * shape.geoms[0].size[0] + 0.15
        object_qpos[3:] = tensor([1.0, 0.0, 0.0, 0.0])


def test_both_simulators_have_the_same_shapes():
    pytest.importorskip("mujoco_warp")
    import warp as wp

    scene = build_scene(1, common_object(drawn(3)))
    fields = shape_fields(scene, drawn(3))
    cfg = SimCfg(device="cpu", num_threads=1)
    sims = [make_simulator(replace(cfg, name=name), scene.model, 3) for name in ("mujoco", "warp")]
    for sim in sims:
        for name, values in fields.items():
            sim.set_field(name, values)
    for name in (*fields, "body_invweight0", "dof_invweight0"):
        expected = torch.from_numpy(sims[0]._batch.expanded(name)).float()
        seen = wp.to_torch(getattr(sims[1]._model, name))
        torch.testing.assert_close(
            seen.reshape(expected.shape), expected, rtol=1e-5, atol=FEW_STEPS
        )
    for sim in sims:
        sim.close()


@pytest.mark.slow
def test_both_simulators_move_the_same_shapes_alike():
    pytest.importorskip("mujoco_warp")
    seen = []
    for sim in ("mujoco", "warp"):
        env = make(sim)
        env.reset()
        put_objects_against_robots(env)
        for _ in range(2):
            step = env.step(torch.zeros(3, 2, 3))
        seen.append(step.obs)
        env.close()
    torch.testing.assert_close(seen[0], seen[1], rtol=0.0, atol=1e-4)


def test_outlines_are_those_of_each_world_and_last_states_have_them_too():
    shapes = drawn(50)
    constants = PushConstants(TASK, 2, "cpu", shapes)
    state, _ = scenes("cuboid", 2)
    both = state.like(torch.cat((state.rows, state.rows), dim=1))
    features = SceneFeatures(both, constants)
    assert torch.equal(features.outline[:50], features.outline[50:])
    points = torch.randn(50, 4, 2)
    footprints = Footprint(common_object(shapes), "cpu", shapes)
    for world in (0, 7, 49):
        footprint = Footprint(shapes[world])
        assert torch.equal(footprints.points[world], footprint.points[0])
        torch.testing.assert_close(
            footprints.distance(points)[world], footprint.distance(points[world])
        )
    # The rectangle round a corner: from its right and from above.
    corner = make_shape("L", [(0.0, 0.0, 1.0, 0.4), (-0.3, 0.45, 0.4, 0.5)], 3.0, 0.5)
    rectangle = Footprint(common_object([corner]), "cpu", [corner])
    seen = rectangle.push_direction(tensor([[[2.0, 0.3], [0.0, 2.0]]]))
    assert seen.tolist() == [[[-1.0, 0.0], [0.0, -1.0]]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"observation": "sincos"}, "task.shapes=drawn needs outlines"),
        ({"shape_force": (3.0, 2.0)}, r"task.shape_force: .* say \[2.0, 3.0\]"),
        (
            {"shape_kinds": ("cylinder",)},
            r"task.shape_kinds: 'cylinder' .* \(cuboid, tb",
        ),
    ],
)
def test_settings_that_shapes_do_not_go_with_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        PushCfg(**({"observation": "sets", "shapes": "drawn"} | settings))


WIDE = [[0, 0, 1.2, 0.4]]


@pytest.mark.parametrize(
    ("box", "others"),
    [
        ([0, 0, 0.3, 0.4], []),
        ([0, 0, 0.4, 0.3], WIDE),
        ([0, 0, 0.45, 0.45], WIDE),
        ([0, 0, 0.04, 0.04], []),
        ([0, 0, 0.5, 0.5], []),
        ([0, 0, 0.49, 0.51], WIDE),
        ([0, 0, 0.04, 1.2], WIDE),
    ],
)
def test_a_narrow_box_has_its_own_inertia_in_every_world(box, others, monkeypatch):
    """MuJoCo compiles a narrow box with principal body axes, and other shapes may not
    inherit them.
    """
    shapes = [make_shape("narrow", [shape_box], 6.0, 0.5) for shape_box in [box, *others]]
    monkeypatch.setattr(push, "held_out_shapes", lambda: shapes)
    env = make(num_envs=2, task=replace(TASK, shapes="held_out"))
    env.reset()
    for _ in range(3):
        env.step(torch.ones(2, 2, 3))
    assert int(env.num_failed) == 0
    model = env.scene.model
    fields = shape_fields(env.scene, shapes)
    body = model.body("object").id
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, fields["body_iquat"][0, body].numpy())
    axes = turn.reshape(3, 3)
    inertia = axes @ np.diag(fields["body_inertia"][0, body].numpy()) @ axes.T
    _, _, x, y = box
    expected = 6.0 / 12.0 * np.array([y**2 + 0.25, x**2 + 0.25, x**2 + y**2])
    np.testing.assert_allclose(inertia, np.diag(expected), atol=1e-12)
    env.close()


def test_a_file_of_shapes_is_refused():
    with pytest.raises(
        ConfigError, match=r"task.shapes: unknown value 'own.json'.*drawn, held_out"
    ):
        PushCfg(observation="sets", shapes="own.json")
