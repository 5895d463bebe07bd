"""Kerbs and slopes of the gait's examination."""

from __future__ import annotations

import math

import pytest
import torch

from mapush.extensions.gait import terrain
from mapush.extensions.gait.gait_worlds import BLOCK_SIZE, Walker
from mapush.extensions.gait.terrain import blocks, largest_passed, measure_terrain
from mqe.controllers.gait import load_gait
from mqe.registry import SimCfg
from mqe.world.geometry import rotation_matrix
from mqe.world.robots import ROBOTS

SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)


def test_a_block_rises_from_its_near_edge() -> None:
    pos, quat = blocks([0.08], [15.0])
    length, _, height = BLOCK_SIZE
    near = pos + rotation_matrix(quat) @ torch.tensor([-length / 2, 0.0, height / 2])
    far = pos + rotation_matrix(quat) @ torch.tensor([length / 2, 0.0, height / 2])
    torch.testing.assert_close(near, torch.tensor([[0.0, 0.0, 0.08], [0.0, 0.0, 0.0]]))
    angle = math.radians(15.0)
    top = [[6.0, 0.0, 0.08], [6.0 * math.cos(angle), 0.0, 6.0 * math.sin(angle)]]
    torch.testing.assert_close(far, torch.tensor(top))


@pytest.mark.parametrize(
    ("share", "largest"),
    [([1.0, 0.875, 1.0], 5.0), ([0.5, 1.0, 1.0], 0.0), ([1.0, 1.0, 0.9], 15.0)],
)
def test_all_smaller_ones_must_be_passed_too(share: list[float], largest: float) -> None:
    assert largest_passed([5.0, 10.0, 15.0], share) == largest


def test_a_gait_walks_over_a_low_kerb_and_not_over_a_high_one(monkeypatch) -> None:
    monkeypatch.setattr(terrain, "KERBS", (0.02, 0.12))
    monkeypatch.setattr(terrain, "SLOPES", (5.0, 35.0))
    gait = load_gait("pretrained:go1_velocity", torch.device("cpu"), ROBOTS["go1"])
    measured = measure_terrain(Walker(gait, SIM, 0), num_robots=2, duration=7.0)
    assert measured["kerb_max_m"] == 0.02
    assert measured["slope_max_deg"] == 5.0


def test_a_robot_that_stands_passes_nothing(monkeypatch) -> None:
    monkeypatch.setattr(terrain, "SPEED", 0.0)
    gait = load_gait("pretrained:go1_velocity", torch.device("cpu"), ROBOTS["go1"])
    measured = measure_terrain(Walker(gait, SIM, 0), num_robots=1, duration=3.0)
    assert measured == {"kerb_max_m": 0.0, "slope_max_deg": 0.0}
