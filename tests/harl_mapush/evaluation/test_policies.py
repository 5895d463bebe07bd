"""Untrained policies: every task's, and the limits for one scripted robot alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from harl_mapush import test
from harl_mapush.evaluation import suite_player
from harl_mapush.evaluation.policies import make_policy, policy_names
from mqe.config import ConfigError
from mqe.registry import TASKS, EnvCfg, SimCfg, make_env
from tests.support.rounding import FEW_STEPS

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
    env = make_env(EnvCfg(num_envs=1), CPU, TASKS["go1push_mid"].cfg(), seed=0)
    with pytest.raises(ConfigError, match="unknown policy of task go1push_mid 'scripted_dance'"):
        make_policy("scripted_dance", "go1push_mid", env, 0)
    env.close()


def test_only_the_first_robot_pushes_alone() -> None:
    task = TASKS["go1push_mid"]
    env = make_env(EnvCfg(num_envs=2, num_agents=3), CPU, task.cfg(object="cylinder"), seed=0)
    obs, _ = env.reset()
    policy = make_policy("scripted_solo", "go1push_mid", env, 0)
    actions = policy(obs)
    assert (actions[:, 0] != 0.0).any(dim=1).all()

    # The goal is ahead, 2 m beyond the object; robot 1 is left of the way, robot 2 aside already.
    names = env.task.obs_names(0)
    obs = torch.zeros_like(obs)
    obs[..., names.index("goal_x")] = 3.0
    obs[..., names.index("object_x")] = 1.0
    for robot, offset in ((1, -0.5), (2, 3.0)):
        obs[:, robot, [names.index("goal_y"), names.index("object_y")]] = offset
    actions = policy(obs)
    assert actions[0, 1].tolist() == pytest.approx([0.0, 1.0, 0.0], abs=FEW_STEPS)
    assert torch.equal(actions[0, 2], torch.zeros(3))
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "rate"),
    [
        (("scripted_solo", "--num_agents", "1"), 1.0),
        (("scripted_solo", "--suite", "team2", "--num_agents", "1"), 0.0),
    ],
    ids=["4 kg", "22 kg"],
)
def test_one_robot_pushes_the_box_alone_but_not_one_of_a_team_suite(
    words, rate, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["--num_episodes", "1", "--device", "cpu", "--set", "task.spawn=separated"]
    settings += [
        "--set",
        "task.goal_distance=[1.2,1.3]",
        "--set",
        "task.episode_length_s=5",
    ]
    settings += ["--team_only", "--json", "figures.json"]
    assert test.main([*words, *settings]) == 0
    assert json.loads(Path("figures.json").read_text())["success_rate"] == rate


@pytest.mark.compared
def test_scripts_play_the_first_of_the_teams_own_starts(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--num_episodes", "3", "--device", "cpu", "--set", "task.episode_length_s=0.2"]
    measured = ["pretrained:cuboid", *words, "--seeds", "5", "6", "--json", "metrics.json"]
    monkeypatch.setattr(suite_player, "NUM_COMPARED", 2)
    assert test.main(measured) == 0
    baselines = json.loads(Path("metrics.json").read_text())["baselines"]
    assert list(baselines) == list(TASKS["go1push_mid"].policies)
    assert baselines["scripted_solo"]["num_episodes"] == 4
    assert baselines["scripted_solo"]["success_rate"] == 0.0
    out = capsys.readouterr().out
    assert "scripted_team, on the same starts       0.000 (0.000 to 0.490), n = 4\n" in out

    assert test.main([*measured, "--team_only"]) == 0
    assert "baselines" not in json.loads(Path("metrics.json").read_text())
    assert "scripted" not in capsys.readouterr().out

    # A script beside itself says nothing.
    assert test.main(["scripted_team", *words]) == 0
    out = capsys.readouterr().out
    assert "scripted_solo, on the same starts" in out
    assert "scripted_team, on the same starts" not in out


@pytest.mark.compared
def test_a_script_that_cannot_act_is_left_out_with_a_note(capsys, monkeypatch) -> None:
    def blind(env: object) -> None:
        raise ConfigError("it sees no object")

    monkeypatch.setitem(TASKS["go1push_mid"].policies, "scripted_solo", blind)
    words = ["--num_envs", "1", "--device", "cpu", "--set", "task.episode_length_s=0.2"]
    assert test.main(["zero", *words]) == 0
    out = capsys.readouterr().out
    assert "Note: scripted_solo is left out: it sees no object" in out
    assert "scripted_team, on the same starts" in out
