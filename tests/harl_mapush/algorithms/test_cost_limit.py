"""A limit of the mean cost: the multiplier, the advantages, learning, saving and the plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import tensor

from harl_mapush import config
from harl_mapush.algorithms.entries import ALGORITHMS, make_algorithm
from harl_mapush.config import RunnerCfg
from harl_mapush.distributed.ranks import ALONE
from harl_mapush.learning.on_policy.cost_limit import mean_cost, next_multiplier
from harl_mapush.learning.settings import NetworkCfg, OnPolicyCfg
from harl_mapush.memory_plan import plan_memory
from harl_mapush.runner import Runner
from tests.support.toy import ToyEnv

_FAST = {
    "cost_learning_rate": 0.5,
    "learning_rate": 0.01,
    "critic_learning_rate": 0.01,
    "gamma": 0.8,
}
ON_POLICY = [name for name, entry in ALGORITHMS.items() if issubclass(entry.cfg, OnPolicyCfg)]


def make(name: str = "happo", env: ToyEnv | None = None, **settings: Any) -> Runner:
    torch.manual_seed(0)
    env = env or ToyEnv(8, failure_rate=0.02, cost_names=("right",))
    settings = {"cost_limit": 0.1, "num_epochs": 2, "num_minibatches": 1} | settings
    cfg = dataclasses.replace(ALGORITHMS[name].cfg(), **settings)
    network = NetworkCfg((8,), use_recurrent_policy=name == "mappo", chunk_length=5)
    algorithm = make_algorithm(cfg, network, env.spec, "cpu", 3)
    return Runner(env, algorithm, RunnerCfg(num_steps=10, num_env_steps=4 * 160))


def test_the_multiplier_rises_above_the_limit_and_falls_below_it_to_zero() -> None:
    rising = next_multiplier(tensor(0.2), tensor(0.3), limit=0.1, learning_rate=0.5)
    falling = next_multiplier(tensor(0.2), tensor(0.0), limit=0.1, learning_rate=0.5)
    at_zero = next_multiplier(tensor(0.02), tensor(0.0), limit=0.1, learning_rate=0.5)
    assert rising.item() == pytest.approx(0.3)
    assert falling.item() == pytest.approx(0.15)
    assert at_zero.item() == 0.0


def test_the_mean_cost_leaves_out_broken_decisions() -> None:
    costs = tensor([[[0.4, 0.2], [0.9, 0.9]], [[0.0, 0.0], [0.1, 0.1]]])
    valid = tensor([[1.0, 0.0], [1.0, 1.0]])
    assert mean_cost(costs, valid, ALONE).item() == pytest.approx((0.3 + 0.0 + 0.1) / 3)


def test_advantages_are_charged_the_multiplier_times_those_of_the_costs() -> None:
    algorithm: Any = make(cost_learning_rate=2.0).algorithm
    storage = algorithm.make_experience(1, 8)
    for value in algorithm.value_learners:  # all values are 0
        torch.nn.init.zeros_(value.critic.v_out.weight)
        torch.nn.init.zeros_(value.critic.v_out.bias)
    storage.terminated[:] = True
    storage.rewards[0, :, 0] = torch.arange(8.0)
    storage.costs.rewards[0, :4] = 1.0
    storage.finish()
    algorithm.compute_returns(storage)
    multiplier = 2.0 * (0.5 - 0.1)
    assert algorithm.cost_limit.multiplier.item() == pytest.approx(multiplier)
    expected = torch.arange(8.0) - multiplier * tensor([1.0] * 4 + [0.0] * 4)
    torch.testing.assert_close(storage.advantages[0, :, 0], expected)
    # The critic of the rewards learns the rewards alone.
    torch.testing.assert_close(storage.returns[0, :, 0], torch.arange(8.0))


def test_costs_are_the_agents_mean_and_the_sum_of_all_terms() -> None:
    env = ToyEnv(4, cost_names=("right", "right_again"))
    runner = make(env=env)
    runner.start()
    runner.collect()
    step = env.step(torch.zeros(4, 2, 2))
    storage: Any = runner.experience
    storage.add(9, torch.zeros(4, 2, 3), runner.algorithm.act(step.obs), step)
    expected = 2.0 * step.info["cost/right"].mean(dim=1, keepdim=True)
    assert 0.0 < expected.mean() < 2.0
    torch.testing.assert_close(storage.costs.rewards[9], expected)


def share_on_the_right(limit: float | None) -> float:
    """Train an agent with its corner on the right. Return its final fraction of time there."""
    env = ToyEnv(32, num_agents=1, cost_names=("right",))
    runner = make("happo", env, cost_limit=limit, **_FAST)
    runner.progress.num_iterations = 30
    runner.learn()
    runner.collect()
    positions = runner.experience.state[..., 0]  # type: ignore[attr-defined]
    return (positions > 0.0).float().mean().item()


def test_a_limit_keeps_an_agent_from_where_it_is_paid() -> None:
    assert share_on_the_right(None) > 0.8
    assert share_on_the_right(0.1) < 0.4


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_limited_run_resumes_as_if_it_had_never_stopped(name: str, tmp_path: Path) -> None:
    through = make(name)
    stopped = make(name)
    through.learn()
    stopped.progress.num_iterations = 2
    stopped.learn()
    torch.save(stopped.state_dict(), tmp_path / "state.pt")
    resumed = make(name)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    resumed.learn()
    of_through: Any = through.algorithm
    of_resumed: Any = resumed.algorithm
    assert "cost_critic" in of_through.weights
    assert all(
        torch.equal(flat, of_resumed.weights[key]) for key, flat in of_through.weights.items()
    )
    assert of_through.cost_limit.multiplier > 0.0
    assert torch.equal(of_through.cost_limit.multiplier, of_resumed.cost_limit.multiplier)


def test_mean_cost_and_multiplier_are_logged_and_the_critic_saved() -> None:
    runner = make()
    runner.start()
    runner.collect()
    metrics = runner.update()
    assert {"cost_limit/mean_cost", "cost_limit/multiplier", "cost_limit/value_loss"} <= set(
        metrics
    )
    assert "cost_critic" in runner.algorithm.networks


def test_a_limit_without_costs_is_refused() -> None:
    with pytest.raises(ValueError, match="cost_limit must be null, not 0.1: the task has no costs"):
        make(env=ToyEnv(8))


def test_the_plan_counts_the_costs() -> None:
    sections = {"algorithm": {"name": "happo"}, "task": {"costs": ["collision"]}}
    plain, _ = config.resolve({}, sections)
    sections["algorithm"]["cost_limit"] = 0.1  # type: ignore[index]
    limited, _ = config.resolve({}, sections)
    device = torch.device("cpu")
    more = [plan_memory(cfg, "mujoco", device).rollout for cfg in (plain, limited)]
    runner = limited.runner
    # Rewards, values, last values, returns and advantages of the costs.
    numbers = limited.env.num_envs * (5 * runner.num_steps + 1)
    assert more[1] - more[0] == pytest.approx(1.05 * 4 * numbers, abs=8)  # 5 % are spare
