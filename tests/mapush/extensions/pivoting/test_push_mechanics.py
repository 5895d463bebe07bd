"""Mechanics of pushes: exact least forces, and pushes of MuJoCo's own objects beside them."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import pytest

from mapush.extensions.pivoting.push_mechanics import (
    Pushes,
    corner_support,
    least_force,
    least_force_of,
    sides,
)
from mqe.world.objects import OBJECTS, ObjectCfg
from mqe.world.scene import build_scene, sliding_force
from tests.support.rounding import FEW_STEPS


def push_at(x: float, y: float, dx: float = 1.0, dy: float = 0.0) -> Pushes:
    return Pushes(np.array([[x, y]]), np.array([[dx, dy]]))


def test_push_through_the_center_takes_the_force_of_a_slide():
    push = least_force(OBJECTS["cuboid"], push_at(-0.6, 0.0))
    assert push.force == pytest.approx(1.0, abs=FEW_STEPS)
    assert abs(push.turn_rate) < FEW_STEPS
    assert push.velocity[0] > 0.99


def test_couple_on_a_square_turns_it_about_its_middle():
    """Four corners at half the diagonal resist two forces at the ends of opposite sides."""
    couple = Pushes(np.array([[-0.6, 0.6], [0.6, -0.6]]), np.array([[1.0, 0.0], [-1.0, 0.0]]))
    assert least_force(OBJECTS["cuboid"], couple).force == pytest.approx(math.sqrt(2.0), abs=1e-4)


@pytest.mark.parametrize(
    ("obj", "corner", "force"),
    [(OBJECTS["cuboid"], (-0.6, 0.58), 0.77), (OBJECTS["beam"], (-0.2, 1.18), 0.55)],
)
def test_push_at_the_end_of_a_side_takes_less(
    obj: ObjectCfg, corner: tuple[float, float], force: float
):
    push = least_force(obj, push_at(*corner))
    assert push.force == pytest.approx(force, abs=0.01)
    # The centre of rotation lies beyond the side's other end.
    assert push.velocity[0] / push.turn_rate < -0.5


def test_closed_form_of_a_square_on_its_corners():
    """The centre of rotation lies on the middle line, at the force-minimising depth."""
    depth = np.linspace(0.0, 3.0, 30_001)
    near = np.hypot(0.6, 0.6 - depth)
    far = np.hypot(0.6, 0.6 + depth)
    force = (0.5 * (near + far) / (0.6 + depth)).min()
    assert least_force(OBJECTS["cuboid"], push_at(-0.6, 0.6)).force == pytest.approx(
        force, abs=1e-5
    )


def test_round_object_gains_nothing():
    assert least_force_of(OBJECTS["cylinder"], 1).force == pytest.approx(1.0, abs=1e-3)


def test_more_robots_gain_less():
    forces = [least_force_of(OBJECTS["cuboid"], num_robots).force for num_robots in (1, 2, 3, 4)]
    assert forces == sorted(forces)
    assert forces == pytest.approx([0.783, 0.872, 0.957, 1.0], abs=2e-3)


def test_loads_balance_the_weight():
    support = corner_support(OBJECTS["tblock"])
    assert support.shares.sum() == pytest.approx(1.0)
    _, center, _ = OBJECTS["tblock"].inertia()
    assert support.shares @ support.points == pytest.approx(center[:2])


def test_sides_leave_out_what_another_part_covers():
    points = sides(OBJECTS["tblock"]).points
    inner = (np.abs(points[:, 0]) < 0.2) & np.isclose(points[:, 1], 0.25)
    assert not inner.any()


@pytest.mark.parametrize(
    "obj",
    [OBJECTS["cuboid"], OBJECTS["beam"], OBJECTS["tblock"], OBJECTS["cylinder"]],
    ids=lambda obj: obj.name,
)
def test_simulated_pushes_move_what_they_should(obj: ObjectCfg):
    """A push 5 % above the least force moves the object. A push 5 % below it does not."""
    places = sides(obj)
    best = least_force_of(obj, 1).pushes
    for pushes in (best, Pushes(places.points[:1], places.directions[:1])):
        least = least_force(obj, pushes).force
        assert moved(obj, pushes, 1.05 * least) > 10.0 * moved(obj, pushes, 0.95 * least)


def moved(obj: ObjectCfg, pushes: Pushes, force: float) -> float:
    """Return how far the place moves in half a second of a push near the floor [m]."""
    scene = build_scene(1, obj)
    model = scene.model
    data = mujoco.MjData(model)
    body = model.body("object").id
    robot = scene.robots[0]
    assert robot is not None
    data.qpos[0] = 8.0
    start = model.nq - 7
    lowest = min(geom.pos[2] - 0.5 * geom.size[-1] for geom in obj.geoms)
    data.qpos[start : start + 7] = (0.0, 0.0, -lowest, 1.0, 0.0, 0.0, 0.0)
    push = np.append(force * sliding_force(obj) * pushes.directions[0], 0.0)
    local = np.append(pushes.points[0], lowest + 0.02)
    path = []
    for step in range(500):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        turn = data.xmat[body].reshape(3, 3)
        point = data.xpos[body] + turn @ local
        path.append(point[:2].copy())
        data.qfrc_applied[:] = 0.0
        if step > 250:
            mujoco.mj_applyFT(model, data, turn @ push, np.zeros(3), point, body, data.qfrc_applied)
        mujoco.mj_step(model, data)
        data.qpos[:3] = (8.0, 0.0, 0.5)  # the robot floats far away
        data.qvel[: model.nv - 6] = 0.0
    return float(np.linalg.norm(path[-1] - path[250]))


def test_a_part_on_top_loads_the_corner_below_it():
    support = corner_support(OBJECTS["loaded"])
    assert len(support.points) == 4
    assert support.shares.argmax() == 3
    assert support.shares @ support.points == pytest.approx(OBJECTS["loaded"].inertia()[1][:2])
