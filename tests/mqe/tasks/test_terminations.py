"""Endings against scenes arranged by hand."""

from __future__ import annotations

import math

import torch
from torch import tensor

from mqe.tasks.push import posture, terminations
from mqe.world.geometry import quat_from_rpy, rotation_matrix
from mqe.world.objects import OBJECTS


def test_success_is_strictly_inside_the_radius() -> None:
    assert posture.success(tensor([0.999, 1.0, 2.0]), 1.0).tolist() == [True, False, False]


def lost(
    roll: list, pitch: list, height: list, pitch_limit: float = posture.PITCH_LIMIT
) -> dict[str, list[bool]]:
    """Return the lost bodies among two robots and a cuboid (the last column), with arbitrary
    headings.
    """
    limits = posture.Posture(
        2, OBJECTS["cuboid"], roll_limit=0.8, pitch_limit=pitch_limit, device=torch.device("cpu")
    )
    rpy = torch.stack((tensor(roll), tensor(pitch), torch.full((len(roll), 3), 2.5)), dim=-1)
    is_lost = limits.lost(rotation_matrix(quat_from_rpy(rpy)), tensor(height))
    return dict(zip(limits.names, is_lost.tolist(), strict=True))


def test_tilt_of_any_robot() -> None:
    roll = [
        [0.0, 0.79, 0.0],
        [0.0, -0.81, 0.0],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [3.1, 0.0, 0.0],
        [0.0, 0.0, 3.0],
    ]
    pitch = [
        [0.0, 0.99, 0.0],
        [0.0, 0.0, 0.0],
        [1.01, 0.0, 0.0],
        [-1.2, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 1.5],
    ]
    height = [[0.3, 0.3, 0.25]] * 6
    assert lost(roll, pitch, height) == {
        "roll": [False, True, False, False, True, False],
        "pitch": [False, False, True, True, False, False],  # the object may tilt
        "height": [False] * 6,
    }
    assert not any(lost(roll, pitch, height, pitch_limit=1.6)["pitch"])


def test_a_robot_on_its_nose_has_lost_its_pitch() -> None:
    quarter = math.pi / 2
    assert lost([[0.0] * 3], [[quarter, 0.0, 0.0]], [[0.3, 0.3, 0.25]])["pitch"] == [True]


def test_height_of_robots_and_object() -> None:
    # Robots spawn at 0.43 m, so that 0.08 m is a fall; a cuboid at 0.28 m.
    height = [
        [0.30, 0.09, 0.25],
        [0.30, 0.07, 0.25],
        [0.79, 0.30, 0.25],
        [0.30, 0.30, 0.62],
        [0.30, 0.30, 0.64],
    ]
    upright = [[0.0] * 3] * 5
    assert lost(upright, upright, height)["height"] == [False, True, True, False, True]


def test_collision_of_any_pair() -> None:
    pairs = tensor([[0.26, 0.5, 1.0], [0.6, 0.24, 1.0]])
    assert terminations.collision(pairs, 0.25).tolist() == [False, True]
    assert terminations.collision(pairs, 0.27).tolist() == [True, True]
    assert terminations.collision(torch.empty(2, 0), 0.25).tolist() == [False, False]
