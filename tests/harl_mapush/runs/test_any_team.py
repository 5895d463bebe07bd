"""A set-reading policy acts in teams of every size, whatever its size in training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harl_mapush import test as evaluate
from harl_mapush import train
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.runs.policy import TeamPolicy, load_team
from mqe.config import ConfigError
from mqe.registry import make_env
from tests.support.rounding import in_double, rounding

RUN = ["--preset", "smoke", "--device", "cpu", "--num_agents", "2", "--num_envs", "4"]
RUN += ["--num_env_steps", "32", "--set", "runner.num_steps=4"]
RUN += ["--set", "algorithm.num_epochs=1", "--set", "algorithm.num_minibatches=1"]
SETS = ["--set", "task.observation=sets"]


def trained(folder: Path, *arguments: str) -> Path:
    assert train.main([*RUN, *arguments, "--out", str(folder)]) == 0
    return checkpoint.resolve(str(folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("any") / "run", *SETS)


def team_of(folder: Path, num_agents: int) -> tuple[TeamPolicy, torch.Tensor]:
    """Return the policy in a team with ``num_agents`` robots, and the team's observations."""
    cfg = evaluation_worlds.settings(folder, {"env": {"num_agents": num_agents, "num_envs": 2}})
    env = make_env(cfg.env, cfg.sim, cfg.task, 0)
    team = load_team(folder, env)
    assert isinstance(team, TeamPolicy)
    obs, _ = env.reset()
    env.close()
    return team, obs


@pytest.mark.parametrize("num_agents", [1, 3, 8])
def test_every_robot_of_any_team_has_the_trained_actor(folder, num_agents):
    team, obs = team_of(folder, num_agents)
    two, _ = team_of(folder, 2)
    actions = team(obs)
    assert actions.shape == (2, num_agents, 3)
    bound = rounding(actions, in_double(two.network)(obs.double()))
    torch.testing.assert_close(actions, two.actor(1)(obs), rtol=0.0, atol=bound)


def test_the_calculator_measures_a_larger_team(folder, tmp_path, capsys):
    measured = ["--num_envs", "2", "--num_episodes", "2", "--set", "task.episode_length_s=0.4"]
    arguments = [str(folder), "--num_agents", "3", "--device", "cpu", "--team_only"]
    assert evaluate.main([*arguments, *measured]) == 0
    assert "Note:" not in capsys.readouterr().out


def test_a_team_that_has_no_room_or_actors_of_its_own_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"env.num_agents=9: .* or take 1 to 8"):
        evaluation_worlds.settings(folder, {"env": {"num_agents": 9}})
    separate_actors = trained(tmp_path / "own", *SETS, "--set", "algorithm.share_param=false")
    with pytest.raises(ConfigError, match=r"env.num_agents=3: .*; leave it out$"):
        evaluation_worlds.settings(separate_actors, {"env": {"num_agents": 3}})
