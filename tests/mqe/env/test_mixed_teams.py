"""Mixed team sizes in one environment: worlds stay independent, absent robots are padded, and
algorithms learn from present robots only.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from harl_mapush.algorithms.entries import ALGORITHMS, make_algorithm
from harl_mapush.config import RunnerCfg
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.runner import Runner
from mqe.config import ConfigError
from mqe.env.mixed_teams import MixedTeams, weighted_means
from mqe.registry import EnvCfg, SimCfg, make_env, make_worlds
from mqe.tasks.push import PushCfg
from mqe.vec_env import Share

SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)
TASK = PushCfg(observation="sets", decision_period=5, episode_length_s=0.3, object="cuboid")


def make(num_envs: int = 5, sizes: tuple[int, ...] = (1, 2, 3)) -> MixedTeams:
    env = make_worlds(EnvCfg(num_envs, team_sizes=sizes), SIM, TASK, 0)
    assert isinstance(env, MixedTeams)
    return env


def test_every_world_is_as_it_would_be_alone():
    env = make()
    assert [(part.num_envs, part.num_agents) for part in env.parts] == [(1, 1), (2, 2), (2, 3)]
    assert (env.num_envs, env.num_agents) == (5, 3)
    alone = make_env(EnvCfg(2, 2), SIM, TASK, 0, Share(first=1))
    obs, state = env.reset()
    own_obs, own_state = alone.reset()
    torch.manual_seed(0)
    has_ended = torch.zeros(5, dtype=torch.bool)
    for _ in range(4):
        assert torch.equal(obs[1:3, :2], own_obs)
        assert torch.equal(state[1:3], own_state)
        assert obs[..., env.spec.presence].sum(dim=1).tolist() == [1.0, 2.0, 2.0, 3.0, 3.0]
        assert not obs[1:3, 2].any()
        actions = 2.0 * torch.rand(5, 3, 3) - 1.0
        step = env.step(actions)
        alone_result = alone.step(actions[1:3, :2])
        obs = step.obs
        state = step.state
        own_obs = alone_result.obs
        own_state = alone_result.state
        assert torch.equal(step.final_obs[1:3, :2], alone_result.final_obs)
        assert torch.equal(step.reward[1:3, :2], alone_result.reward)
        torch.testing.assert_close(step.reward[1:3, 2], alone_result.reward.mean(dim=1))
        assert torch.equal(step.done[1:3], alone_result.done)
        has_ended |= step.done
    assert bool(has_ended.all())
    env.close()
    alone.close()


def test_statistics_are_those_of_all_sizes_and_of_each():
    env = make(6)
    env.reset()
    for _ in range(6):
        env.step(torch.zeros(6, 3, 3))
    statistics = env.statistics()
    assert statistics["num_episodes"] == 12
    assert {"success_rate", "success_rate_of_1", "success_rate_of_3"} <= set(statistics)
    env.close()
    assert weighted_means(
        [
            {"a": 1.0, "num_episodes": 3},
            {"a": 5.0, "b": 2.0, "num_episodes": 1},
            {"a": math.nan, "num_episodes": 0},
        ]
    ) == {"a": 2.0, "b": 2.0, "num_episodes": 4}


@pytest.mark.parametrize("algorithm", ["happo", "hasac"])
def test_a_run_with_several_sizes_learns_and_resumes_to_the_bit(algorithm: str):
    settings: dict[str, Any] = {"share_param": True}
    if algorithm == "hasac":
        settings |= {"warmup": 8, "batch_size": 8, "buffer_size": 64, "update_ratio": 0.25}
        settings |= {"save_replay": True}
    else:
        settings |= {"num_epochs": 2}
    network = NetworkCfg((8,), sets="deep_set", set_width=4)

    def begin(num_env_steps: int) -> Runner:
        torch.manual_seed(0)
        env = make(4, (1, 3))
        cfg = ALGORITHMS[algorithm].cfg(**settings)
        team = make_algorithm(cfg, network, env.spec, env.device, 1)
        return Runner(env, team, RunnerCfg(num_env_steps=num_env_steps, num_steps=4))

    whole = begin(160)
    whole.learn()
    half = begin(80)
    start = {name: values.clone() for name, values in half.algorithm.weights.items()}
    half.learn()
    rest = begin(160)
    rest.load_state_dict(half.state_dict())
    rest.learn()
    for name, values in rest.algorithm.weights.items():
        assert torch.equal(values, whole.algorithm.weights[name])
        assert bool(torch.isfinite(values).all())
        assert not torch.equal(values, start[name])
    for runner in (whole, half, rest):
        runner.env.close()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"team_sizes": (2, 1)}, r"env.team_sizes: \[2, 1\] .* say \[1, 2\]"),
        ({"team_sizes": (1, 2), "num_agents": 3}, "env.num_agents=3: .* say 2"),
        ({"team_sizes": (1, 2), "robots": ("go1", "go2")}, "env.robots: .* kind"),
    ],
)
def test_sizes_that_contradict_are_refused(env, message):
    with pytest.raises(ConfigError, match=message):
        EnvCfg(**env)


def test_worlds_without_a_world_for_each_size_or_without_sets_are_refused():
    with pytest.raises(ConfigError, match="env.num_envs=1: 2 env.team_sizes"):
        make(1, (1, 2))
    with pytest.raises(ConfigError, match=r"env.team_sizes=\[1, 2\].*task.observation=sets"):
        make_worlds(EnvCfg(2, team_sizes=(1, 2)), SIM, PushCfg(), 0)
