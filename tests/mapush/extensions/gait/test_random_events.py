"""Random events in gait training: probabilities and ranges for commands, kicks, forces and
starts.
"""

from __future__ import annotations

import pytest
import torch

from mapush.extensions.gait.random_events import RandomEvents
from mapush.extensions.gait.settings import VelocityCfg
from mqe.world.streams import Streams

N = 100_000
EPISODE = torch.ones(N, dtype=torch.int64)


def make_chance(**cfg) -> RandomEvents:
    return RandomEvents(VelocityCfg(**cfg), Streams(0, N, "cpu"), EPISODE)


def share(mask: torch.Tensor) -> float:
    return mask.float().mean().item()


def test_some_commands_stand_and_some_go_along_one_axis() -> None:
    _, command = make_chance(max_command=(0.6, 0.4, 0.2)).start(EPISODE)
    moves = command[:, 0] != 0.0
    assert share(~moves.any(dim=1)) == pytest.approx(0.12, abs=0.005)
    for axis in range(3):
        assert share(moves[:, axis] & (moves.sum(dim=1) == 1)) == pytest.approx(0.25 / 3, abs=0.005)
    assert share(moves.all(dim=1)) == pytest.approx(1 - 0.12 - 0.25, abs=0.005)
    for axis, upper in enumerate((0.6, 0.4, 0.2)):
        assert command[:, 0, axis].max().item() == pytest.approx(upper, rel=1e-3)
        assert command[:, 0, axis].min().item() == pytest.approx(-upper, rel=1e-3)


def test_starts_take_any_pose_of_the_table() -> None:
    pose, _ = make_chance().start(EPISODE)
    assert pose.min().item() == pytest.approx(0.0, abs=1e-3)
    assert pose.max().item() == pytest.approx(1.0, abs=1e-3)
    assert pose.mean().item() == pytest.approx(0.5, abs=0.02)


def test_some_commands_are_slow_and_some_ask_for_much() -> None:
    _, command = make_chance(max_command=(0.6, 0.6, 0.6)).start(EPISODE)
    command = command[(command[:, 0] != 0.0).any(dim=1)]
    largest = command[:, 0].abs().amax(dim=1)
    along_all = (command[:, 0] != 0.0).all(dim=1)
    assert share(largest <= 0.3 * 0.6) > 0.25  # a quarter is slow, and some are by themselves
    assert share((command[along_all, 0].abs() >= 0.3).all(dim=1)) == pytest.approx(
        0.3 + 0.45 / 8, abs=0.01
    )


def test_events_are_as_frequent_and_as_strong_as_they_should_be() -> None:
    event = make_chance(max_kick=0.7, max_force=25.0).step(EPISODE, torch.arange(N) % 1000)
    assert share(event.is_kicked) == pytest.approx(0.01, abs=0.002)
    assert share(event.is_new_force) == pytest.approx(0.015, abs=0.002)
    assert share(event.is_new_command) == pytest.approx(0.15 * 0.1 + 0.85 * 0.005, abs=0.002)
    kick = event.kick[:, 0].norm(dim=1)
    force = event.force[:, 0].norm(dim=1)
    assert kick.mean().item() == pytest.approx(0.35, abs=0.005)
    assert kick.max().item() == pytest.approx(0.7, rel=1e-3)
    assert share(force == 0.0) == pytest.approx(0.75, abs=0.005)
    assert force.max().item() == pytest.approx(25.0, rel=1e-3)
    assert force[force > 0].mean().item() == pytest.approx(12.5, abs=0.2)
    for push in (event.kick, event.force):
        assert not push[..., 2].any()
        assert push[:, 0].mean(dim=0).abs().max().item() < 0.05
    assert not make_chance(max_kick=0.0, max_force=0.0).step(EPISODE, EPISODE).force.any()
