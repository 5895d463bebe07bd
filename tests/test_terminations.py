"""Endings against scenes arranged by hand."""

from __future__ import annotations

import torch
from torch import tensor

from mqe.geometry import quat_from_euler
from mqe.tasks import terminations


def test_success_is_strictly_inside_the_radius() -> None:
    assert terminations.success(tensor([0.999, 1.0, 2.0]), 1.0).tolist() == [True, False, False]


def test_tilt_of_any_robot() -> None:
    roll = tensor([[0.0, 0.79], [0.0, -0.81], [0.0, 0.0], [0.0, 0.0], [3.1, 0.0]])
    pitch = tensor([[0.0, 0.99], [0.0, 0.0], [1.01, 0.0], [-1.2, 0.0], [0.0, 0.0]])
    quat = quat_from_euler(roll, pitch, torch.full_like(roll, 2.5))
    rolled, pitched = terminations.tilt(quat, roll_limit=0.8, pitch_limit=1.0)
    assert rolled.tolist() == [False, True, False, False, True]
    assert pitched.tolist() == [False, False, True, True, False]
    assert not terminations.tilt(quat, roll_limit=0.8, pitch_limit=1.6)[1].any()


def test_height_of_robots_and_object() -> None:
    # Robots are born at 0.43 m, so that 0.08 m is a fall; a cuboid at 0.28 m.
    robot_z = tensor([[0.30, 0.09], [0.30, 0.07], [0.79, 0.30], [0.30, 0.30], [0.30, 0.30]])
    object_z = tensor([0.25, 0.25, 0.25, 0.62, 0.64])
    assert terminations.height(robot_z, object_z, 0.28).tolist() == [False, True, True, False, True]


def test_collision_of_any_pair() -> None:
    pairs = tensor([[0.26, 0.5, 1.0], [0.6, 0.24, 1.0]])
    assert terminations.collision(pairs, 0.25).tolist() == [False, True]
    assert terminations.collision(pairs, 0.27).tolist() == [True, True]
    assert terminations.collision(torch.empty(2, 0), 0.25).tolist() == [False, False]
