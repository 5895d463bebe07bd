"""Exact observations from the critic's state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import tensor

from mapush.extensions.pivoting.exact_observations import ExactObservations
from mqe.config import ConfigError
from mqe.extensions import load_extensions
from mqe.tasks.push import PushTask
from tests.support.pushing import make_state, make_task
from tests.support.rounding import FEW_STEPS

load_extensions()
MOVING = make_state(
    [[-2.0, 0.5], [-1.5, 1.5], [3.0, -1.0]], [0.4, -2.0, 3.0], [1.0, 0.7], 0.2, [4.0, 1.0]
)
MOVING.body_linvel[..., :2] = tensor([[0.3, 0.1], [-0.2, 0.0], [0.0, 0.4], [0.1, -0.2]])
MOVING.robot_angvel_b[..., 2] = tensor([0.5, -0.3, 0.1])


def begun(**cfg: Any) -> PushTask:
    """Return a task of three robots, without the last one where sets say so."""
    task = make_task(1, 3, **cfg)
    task.constants.load.fill_(85.0)
    is_away = tensor([[False, False, True]])
    task.excuse_robots(is_away, is_away)
    task.layout(torch.zeros(1, dtype=torch.int64))
    task.begin(torch.ones(1, dtype=torch.bool))
    return task


@pytest.mark.parametrize("more", [(), ("own_velocity", "object_velocity", "load")])
@pytest.mark.parametrize("observation", ["sincos", "sets"])
def test_they_are_those_of_a_task_without_senses(observation: str, more: tuple) -> None:
    exact = begun(observation=observation, more_observations=more)
    expected, _ = exact.observe(MOVING, exact.memory)
    task = begun(
        observation=observation,
        senses={"name": "onboard"},
        more_observations=("object_age",),
        more_state=("load", "object_velocity"),
    )
    obs, critic = task.observe(MOVING, task.memory)
    observations = ExactObservations(task, more)
    task.constants.load.fill_(1.0)  # the state alone has it
    size = min(obs.shape[2], observations.size)
    assert not torch.isclose(obs[..., :size], expected[..., :size], atol=0.1).all()
    result = observations(critic.unsqueeze(1))
    is_there = torch.ones(3, dtype=torch.bool)
    if observation == "sets":
        is_there[2] = False  # Numbers of an absent robot have no meaning.
    torch.testing.assert_close(
        result[:, is_there], expected[:, is_there], atol=10 * FEW_STEPS, rtol=0.0
    )
    assert observations.names == exact.obs_names(0)


@pytest.mark.parametrize(
    "settings",
    [
        {"observation": "reference"},
        {"state_type": "FP"},
        {"goal_heading": 0.0, "success_heading": 0.3},
    ],
)
def test_other_states_are_refused_in_a_line(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="with task.senses reads .*; say task.observation"):
        ExactObservations(make_task(1, 2, senses={"name": "onboard"}, **settings))


@pytest.mark.parametrize("name", ["load", "object_velocity"])
def test_what_the_critic_does_not_know_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"say task.more_state=\[{name}\]"):
        ExactObservations(make_task(1, 2, senses={"name": "onboard"}), [name])
