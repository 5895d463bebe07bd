"""Policies without training: every task's, and what one robot with a script can do alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from harl_mapush import test
from harl_mapush.evaluation.policies import make_policy, policy_names
from mqe.config import ConfigError
from mqe.registry import TASKS, EnvCfg, SimCfg, make_env

CPU = SimCfg(name="mujoco", device="cpu", num_threads=1)


@pytest.mark.parametrize("task", TASKS)
def test_every_policy_of_a_task_acts(task: str) -> None:
    env = make_env(EnvCfg(num_envs=2), CPU, TASKS[task].cfg(), seed=0)
    obs, _ = env.reset()
    for name in policy_names(task):
        actions = make_policy(name, task, env, 0)(obs)
        assert actions.shape == (2, env.num_agents, env.spec.action_size), name
        assert actions.abs().max() <= 1.0, name
    env.close()


def test_a_policy_that_the_task_has_not_is_named() -> None:
    env = make_env(EnvCfg(num_envs=1), CPU, TASKS["go1_velocity"].cfg(), seed=0)
    with pytest.raises(ConfigError, match="unknown policy of task go1_velocity 'scripted_solo'"):
        make_policy("scripted_solo", "go1_velocity", env, 0)
    env.close()


def test_only_the_first_robot_pushes_alone() -> None:
    task = TASKS["go1push_mid"]
    env = make_env(EnvCfg(num_envs=2, num_agents=3), CPU, task.cfg(object="cylinder"), seed=0)
    obs, _ = env.reset()
    actions = make_policy("scripted_solo", "go1push_mid", env, 0)(obs)
    assert torch.equal(actions[:, 1:], torch.zeros(2, 2, 3))
    assert (actions[:, 0] != 0.0).any(dim=1).all()
    env.close()


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        (("scripted_solo", "--num_agents", "1"), 1.0),
        (
            (
                "scripted_solo",
                "--suite",
                "team2",
                "--num_agents",
                "1",
                "--set",
                "task.episode_length_s=8",
            ),
            0.0,
        ),
    ],
    ids=["4 kg", "16 kg"],
)
def test_one_robot_pushes_the_box_alone_but_not_one_of_a_team_suite(
    words, rate, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["--num_episodes", "1", "--device", "cpu", "--set", "task.spawn=separated"]
    assert test.main([*words, *settings, "--json", "figures.json"]) == 0
    assert json.loads(Path("figures.json").read_text())["success_rate"] == rate
