"""Training loads resist a gait like an object ahead."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor

from mapush.extensions.gait.features import horizontal_velocity, resistance
from mapush.extensions.gait.random_events import RandomEvents
from mapush.extensions.gait.settings import VelocityCfg
from mapush.extensions.gait.task import VelocityTask
from mqe.world.geometry import quat_from_yaw
from mqe.world.state import SceneState
from mqe.world.streams import Streams
from tests.support.scenes import changed, team

MANY = 20_000


def make_task(num_envs: int = 2, **cfg: object) -> VelocityTask:
    settings = {"max_load": 80.0, "more_state": ("load",), **cfg}
    return VelocityTask(VelocityCfg(**settings), num_envs, team(1), Streams(0, num_envs, "cpu"))


def walking(num_envs: int, speed: float, yaw: float) -> SceneState:
    """Return robots in a walk straight ahead at ``speed`` [m/s]."""
    along = tensor([math.cos(yaw), math.sin(yaw), 0.0])
    return changed(
        SceneState.zeros(num_envs, 1, False, "cpu"),
        robot_pos=tensor([0.0, 0.0, 0.28]),
        robot_quat=quat_from_yaw(tensor(yaw)),
        robot_linvel=speed * along,
    )


def test_a_load_resists_walking_ahead_and_nothing_else() -> None:
    assert resistance(tensor([-0.5, 0.0])).tolist() == [0.0, 0.0]
    assert resistance(tensor(0.15)).item() == pytest.approx(math.tanh(1.0))
    assert resistance(tensor(0.5)).item() == pytest.approx(1.0, abs=0.003)


def test_its_force_is_against_the_robots_heading() -> None:
    task = make_task()
    task.begin(torch.ones(2, dtype=torch.bool))
    task._shown.load.copy_(tensor([40.0, 0.0]).view(2, 1, 1))
    state = walking(2, 0.15, yaw=math.pi / 2)
    task.step_features(state, state)
    disturbance = task.disturb(tensor([1, 1]))
    assert disturbance is not None
    force = disturbance.force[:, 0] - task._shown.force[:, 0]
    expected = tensor([[0.0, -40.0 * math.tanh(1.0), 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(force, expected)


def test_pushing_pays_up_to_the_commanded_speed() -> None:
    task = make_task()
    task._shown.load.copy_(tensor([40.0, 80.0]).view(2, 1, 1))
    task._shown.command.copy_(tensor([[[0.3, 0.0, 0.0]]]))
    slow = walking(2, 0.15, yaw=0.0)
    fast = walking(2, 0.6, yaw=0.0)
    assert task.step_features(slow, slow).push[:, 0].tolist() == pytest.approx(
        [0.5 * math.tanh(1.0), math.tanh(1.0)]
    )
    assert task.step_features(fast, fast).push[0, 0].item() == pytest.approx(0.5 * math.tanh(2.0))


def test_a_load_ends_with_its_episode() -> None:
    task = make_task()
    task._shown.load.fill_(30.0)
    task.begin(tensor([True, False]))
    assert task._shown.load.flatten().tolist() == [0.0, 30.0]


def test_two_thirds_of_the_commands_come_with_a_load() -> None:
    episode = torch.ones(MANY, dtype=torch.int64)
    events = RandomEvents(VelocityCfg(max_load=80.0), Streams(0, MANY, "cpu"), episode)
    load = events.step(episode, episode).load
    assert (load > 0.0).float().mean().item() == pytest.approx(2.0 / 3.0, abs=0.01)
    assert load.max().item() == pytest.approx(80.0, rel=1e-3)


def test_a_loaded_command_leads_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapush.extensions.gait.random_events.RESTLESS_SHARE", 1.0)
    task = make_task(MANY)
    task.begin(torch.ones(MANY, dtype=torch.bool))
    for step in range(1, 8):
        task.disturb(torch.full((MANY,), step))
    loaded = task._shown.load[:, 0, 0] > 0.0
    assert loaded.any()
    assert task._shown.command[loaded, 0, 0].min().item() >= 0.0
    assert task._shown.command[~loaded, 0, 0].min().item() < -0.3


def test_without_loads_nothing_is_remembered_of_them() -> None:
    task = make_task(max_load=0.0)
    assert task.memory.shape[1] == 34
    assert make_task().memory.shape[1] == 37
    assert task.spec.state_size == make_task().spec.state_size


def test_a_points_velocity_is_the_trunks_its_turning_and_its_own() -> None:
    state = changed(
        walking(1, 0.5, yaw=math.pi / 2),  # ahead is along y
        robot_angvel_b=tensor([0.0, 0.0, 2.0]),
    )
    ahead = tensor([1.0, 0.0, 0.0]).expand(1, 1, 4, 3)
    velocity = horizontal_velocity(state, 0.3 * ahead, 0.2 * ahead)
    # The turning moves a point ahead of the trunk to the robot's left, along -x.
    expected = tensor([-0.3 * 2.0, 0.5 + 0.2]).expand(1, 1, 4, 2)
    torch.testing.assert_close(velocity, expected)
