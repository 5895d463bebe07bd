"""Visual shapes in films and viewers, separate from the collision shapes."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest

from mqe.viewer import looks
from mqe.viewer.looks import COLORS, HIDDEN, shown_model
from mqe.world.objects import OBJECTS
from mqe.world.robots import ROBOTS
from mqe.world.robots.build import team_color
from mqe.world.scene import build_scene

TEAMS = [
    ("cuboid", ("go1", "go2")),
    ("tblock", ("go2", "go1")),
    ("cylinder", ("go1", "go1", "go2")),
]


def rolled_out(model: mujoco.MjModel, num_steps: int = 300) -> np.ndarray:
    """Return states (T, nq + nv) from robots as they fall onto the floor and against the object,
    and kick about.
    """
    data = mujoco.MjData(model)
    states = []
    touched = False
    for i in range((model.nq - 7) // 19):
        data.qpos[19 * i : 19 * i + 3] = (-0.9, 0.9, 0.0)[i], (0.0, 0.0, -1.9)[i], 0.35
    rng = np.random.default_rng(1)
    for _ in range(num_steps):
        data.ctrl[:] = rng.uniform(-1.5, 1.5, model.nu)
        mujoco.mj_step(model, data)
        touched |= data.ncon > 0
        states.append(np.concatenate((data.qpos, data.qvel)))
    assert touched
    return np.stack(states)


@pytest.mark.parametrize(("name", "robots"), TEAMS)
def test_looks_change_nothing_of_the_physics(name: str, robots: tuple[str, ...]) -> None:
    scene = build_scene(len(robots), OBJECTS[name], robots=robots)
    num_geoms = scene.model.ngeom
    shown = shown_model(scene)
    assert shown.ngeom > num_geoms
    for field in ("body_mass", "body_inertia", "body_ipos"):
        assert np.array_equal(getattr(shown, field), getattr(scene.model, field))
    assert np.array_equal(rolled_out(shown), rolled_out(scene.model))  # to the last bit
    # Trains without them.
    assert build_scene(len(robots), OBJECTS[name], robots=robots).model.ngeom == num_geoms


@pytest.mark.parametrize("name", ROBOTS)
def test_a_robot_with_looks_has_them_everywhere_and_shows_nothing_else(name: str) -> None:
    robot = ROBOTS[name]
    assert robot.looks is not None
    scene = build_scene(1, None, robots=name)
    plain = scene.model
    shown = shown_model(scene)
    for geom in range(shown.ngeom):
        body = shown.body(shown.geom_bodyid[geom]).name
        if body.startswith("robot"):
            touches = bool(shown.geom_contype[geom] or shown.geom_conaffinity[geom])
            assert (shown.geom_group[geom] == HIDDEN) == touches
    visible = {shown.body(body).name for body in shown.geom_bodyid[shown.geom_group != HIDDEN]}
    links = {body.name for body in map(shown.body, range(shown.nbody)) if "robot" in body.name}
    assert links <= visible
    team = np.all(np.isclose(shown.geom_rgba, team_color(0)), axis=1)
    assert (shown.geom_group[team] != HIDDEN).any()
    data = mujoco.MjData(shown)
    mujoco.mj_forward(shown, data)
    robot_geoms = [
        geom
        for geom in range(shown.ngeom)
        if shown.geom_bodyid[geom] and shown.geom_group[geom] != HIDDEN
    ]
    span = np.ptp(data.geom_xpos[robot_geoms], axis=0)
    assert plain.nbody == shown.nbody
    assert 0.4 < span[0] < 0.6  # [m] as long and as wide as the robot
    assert 0.2 < span[1] < 0.35


def test_a_robot_without_looks_is_drawn_as_what_it_collides_with() -> None:
    scene = build_scene(1, None)
    bare = replace(scene, robots=(replace(scene.robots[0], looks=None),))
    shown = shown_model(bare)
    assert not (shown.geom_group == looks.HIDDEN).any()


@pytest.mark.parametrize("radius", [1.0, 0.5])
def test_the_goal_is_shown_as_a_flat_ring_of_the_success_radius_end_to_end(radius: float) -> None:
    model = shown_model(build_scene(2, OBJECTS["cuboid"], success_radius=radius))
    goal = np.flatnonzero(model.geom_bodyid == model.body("goal").id)
    assert not model.geom_contype[goal].any()
    assert not model.geom_conaffinity[goal].any()
    assert model.site_group.tolist() == [HIDDEN]  # the ring's fill is drawn instead
    radii = model.geom_size[goal, 0]
    np.testing.assert_allclose(radii, (radius + 0.025, radius - 0.025, 0.05))
    tops = model.geom_pos[goal, 2] + model.geom_size[goal, 1]
    assert (np.diff(tops) > 0.001).all()  # discs a millimetre apart do not flicker
    assert tops[-1] < 0.01


def test_lines_that_cross_on_the_floor_differ_in_height() -> None:  # else both would be lit
    model = shown_model(build_scene(1, OBJECTS["cuboid"]))
    is_line = np.isclose(model.geom_rgba[:, :3], COLORS["line"]).all(axis=1)
    lines = np.flatnonzero(is_line)
    tops = model.geom_pos[lines, 2]
    is_upright = model.geom_size[lines, 0] < model.geom_size[lines, 1]
    assert tops[is_upright].min() > tops[~is_upright].max()
    assert len(lines) == 2 * 25
