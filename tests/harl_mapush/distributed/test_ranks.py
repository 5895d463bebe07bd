"""harl_mapush.distributed.ranks: several processes train as one would."""

from __future__ import annotations

import copy
import dataclasses
import functools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from harl_mapush import config
from harl_mapush.algorithms.entries import ALGORITHMS, make_algorithm
from harl_mapush.config import RunnerCfg
from harl_mapush.distributed.launch import Launch
from harl_mapush.distributed.ranks import ALONE, Ranks, UnequalRanksError
from harl_mapush.distributed.resharding import redistribute
from harl_mapush.distributed.shares import own_settings
from harl_mapush.learning.normalization import (
    ReturnNorm,
    ValueNorm,
    normalize_advantages,
)
from harl_mapush.learning.settings import NetworkCfg, OnPolicyCfg
from harl_mapush.runner import Runner
from harl_mapush.trainer import NonFiniteError
from mqe.config import ConfigError
from mqe.controllers.blocks import SIZE
from mqe.cores import num_cores
from mqe.env.statistics import EpisodeStatistics
from mqe.registry import make_env
from mqe.vec_env import Share
from mqe.world.streams import Streams
from tests.support.meeting import on_ranks
from tests.support.products import ignore_other_rows
from tests.support.rounding import FEW_STEPS
from tests.support.toy import ToyEnv
from tests.support.trials import for_trial

CPU = torch.device("cpu")
BUILDING = threading.Lock()
NUM_STEPS = 6  # of a learner's rollout


def test_a_gradient_counts_by_the_rows_it_is_the_mean_of() -> None:
    def average(ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor]:
        gradient = torch.tensor([[1.0, 2.0], [5.0, -2.0]][ranks.rank])
        (kl,) = ranks.average_(
            gradient, torch.tensor([3.0, 1.0][ranks.rank]), torch.tensor([0.1, 0.3][ranks.rank])
        )
        return gradient, kl

    for gradient, kl in on_ranks(2, average):
        assert gradient.tolist() == [2.0, 1.0]
        assert float(kl) == pytest.approx(0.2)


def test_a_rank_counts_its_messages(monkeypatch) -> None:
    """Whoever sends some is not stuck."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_: None)
    ranks = Ranks(0, 2)
    ranks.sum_(torch.zeros(1))
    ranks.max_(torch.zeros(1))
    assert ranks.num_messages == 2


def test_numbers_are_drawn_for_all_ranks_and_each_takes_its_rows() -> None:
    whole = torch.randn((6, 2), generator=torch.Generator().manual_seed(4))

    def draw(ranks: Ranks) -> torch.Tensor:
        return ranks.draw(torch.randn, (2, 2), generator=torch.Generator().manual_seed(4))

    assert torch.equal(torch.cat(on_ranks(3, draw)), whole)


def test_an_order_of_a_ranks_rows_is_that_of_all_rows_and_leaves_generators_alike() -> None:
    def draw(ranks: Ranks) -> tuple[list[int], torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        return ranks.order(5, generator).tolist(), generator.get_state()

    whole = torch.randperm(10, generator=torch.Generator().manual_seed(1)).tolist()
    draws = on_ranks(2, draw)
    for rank, (order, _) in enumerate(draws):
        assert order == [row - 5 * rank for row in whole if row // 5 == rank]
    assert torch.equal(draws[0][1], draws[1][1])


@pytest.mark.parametrize("make", [lambda: ReturnNorm(2.0), lambda: ValueNorm(0.9)])
def test_normalisers_of_two_ranks_are_that_of_all_rows(make: Any) -> None:
    whole = make()
    x = torch.randn(2, 40, 1)
    weights = (torch.rand(2, 40) < 0.7).float()
    weights[1, :30] = 0.0  # means of the ranks' means would be another number
    extra = (lambda w: w) if isinstance(whole, ReturnNorm) else (lambda w: w.unsqueeze(-1))
    whole.update(x.flatten(0, 1), extra(weights.flatten()))

    def update(ranks: Ranks) -> dict[str, torch.Tensor]:
        norm = make()
        norm.update(x[ranks.rank], extra(weights[ranks.rank]), ranks)
        return norm.state_dict()

    for state in on_ranks(2, update):
        for name, value in whole.state_dict().items():
            assert torch.allclose(state[name], value, rtol=FEW_STEPS, atol=FEW_STEPS), name


def test_advantages_of_two_ranks_are_normalised_together() -> None:
    advantages = torch.randn(2, 4, 10) + 3.0
    weights = (torch.rand(2, 4, 10) < 0.5).float()
    whole = normalize_advantages(advantages, weights)
    results = on_ranks(
        2, lambda ranks: normalize_advantages(advantages[ranks.rank], weights[ranks.rank], ranks)
    )
    assert torch.allclose(torch.stack(results), whole, atol=FEW_STEPS)


def test_streams_and_statistics_go_by_the_number_of_the_world() -> None:
    episode = torch.arange(6)
    whole = Streams(3, 6, CPU).uniform(2, episode, (4,))
    assert torch.equal(Streams(3, 4, CPU, first=2).uniform(2, episode[2:], (4,)), whole[2:])

    def means(ranks: Ranks) -> dict[str, float]:
        statistics = EpisodeStatistics(("time",), (), 4, CPU, Share(4 * ranks.rank, 2, ranks.sum_))
        figures = torch.tensor(
            [[[1.0], [2.0], [3.0], [torch.nan]], [[9.0], [0.0], [0.0], [0.0]]][ranks.rank]
        )
        statistics.record(
            torch.tensor([[True] * 4, [True, False, False, False]][ranks.rank]), figures
        )
        return statistics.means()

    assert on_ranks(2, means) == [{"time": 15.0 / 4, "num_episodes": 5}] * 2


def learner(name: str, ranks: Ranks, num_envs: int) -> Runner:
    """A learner with equal networks on every rank and separate worlds per rank."""
    env = ToyEnv(num_envs, death_rate=0.05, failure_rate=0.02, seed=ranks.rank)
    cfg = ALGORITHMS[name].cfg()
    cfg = dataclasses.replace(cfg, num_epochs=1) if isinstance(cfg, OnPolicyCfg) else cfg
    with BUILDING:  # ranks of a test share torch's generator
        torch.manual_seed(0)
        network = NetworkCfg((8,))
        num_rows = 2 * NUM_STEPS
        algorithm = make_algorithm(for_trial(cfg, num_rows), network, env.spec, "cpu", 3, ranks)
    return Runner(env, algorithm, RunnerCfg(3, 10**9, NUM_STEPS), ranks=ranks)


def learned(runner: Runner, num_iterations: int) -> Runner:
    runner.progress.num_iterations = runner.progress.iteration + num_iterations
    runner.learn()
    return runner


# HAA2C and the MA algorithms of the off-policy kind add nothing that ranks share.
@pytest.mark.parametrize("name", sorted({*ALGORITHMS} - {"haa2c", "masac", "matd3"}))
def test_every_algorithm_keeps_its_ranks_equal_to_the_last_bit(name: str) -> None:
    def learn(ranks: Ranks) -> Runner:
        runner = learned(learner(name, ranks, 4), 2)
        networks = runner.algorithm.networks.items()
        ranks.check_weights(
            {
                f"{net}.{key}": value
                for net, of in networks
                for key, value in of.state_dict().items()
            }
        )
        return runner

    before = learner(name, ALONE, 4).algorithm.weights
    ends = on_ranks(2, learn)
    for key, flat in ends[0].algorithm.weights.items():
        assert not torch.equal(flat, before[key]), key
    assert torch.equal(*(end.algorithm.generator.get_state() for end in ends))
    assert ends[0].progress.env_steps == 2 * NUM_STEPS * 8 * 2


def test_ranks_with_other_weights_are_named() -> None:
    with pytest.raises(UnequalRanksError, match="rank 1 holds other critic than rank 0"):
        on_ranks(
            2,
            lambda ranks: ranks.check_weights(
                {"actor": torch.ones(2), "critic": torch.ones(2) * ranks.rank}
            ),
        )


def test_a_number_that_is_not_finite_stops_all_ranks() -> None:
    def learn(ranks: Ranks) -> str:
        runner = learner("happo", ranks, 4)
        step = runner.env.step
        if ranks.rank == 1:
            runner.env.step = lambda actions: step(actions)._replace(
                reward=torch.full((4, 2), torch.nan)
            )  # type: ignore
        with pytest.raises(NonFiniteError) as stop:
            learned(runner, 1)
        return str(stop.value)

    said = on_ranks(2, learn)
    assert said[0] == said[1]


@functools.cache
def state_of_two_ranks(name: str) -> dict[str, Any]:
    """Return the training state from two ranks after two iterations."""
    return on_ranks(2, lambda ranks: learned(learner(name, ranks, 4), 2).state_dict())[0]


@pytest.mark.parametrize("name", ["happo", "hasac"])
@pytest.mark.parametrize("now", [1, 2, 4])
def test_a_run_of_two_ranks_resumes_on_any_number(name: str, now: int) -> None:
    saved = state_of_two_ranks(name)

    def resume(ranks: Ranks) -> Runner:
        runner = learner(name, ranks, 8 // now)
        runner.load_state_dict(copy.deepcopy(saved))
        position = runner.env.position.clone()  # type: ignore[attr-defined]
        learned(runner, 1)
        runner.env.position = position  # type: ignore[attr-defined]
        return runner

    runners = on_ranks(now, resume) if now > 1 else [resume(ALONE)]
    assert all(runner.progress.iteration == 3 for runner in runners)
    positions = torch.cat([runner.env.position for runner in runners])  # type: ignore[attr-defined]
    assert torch.equal(
        positions, torch.cat([share["env"]["position"] for share in saved["shares"]])
    )


def test_worlds_are_joined_and_cut_along_the_dimension_that_counts_them() -> None:
    shares = [
        {
            "a": torch.full((2, 3), float(k)),
            "b": torch.full((5, 2), k),
            "c": torch.tensor(k),
            "d": k,
        }
        for k in (0, 1)
    ]
    rank_state = {"a": torch.zeros(1, 3), "b": torch.zeros(5, 1), "c": torch.tensor(0), "d": 0}
    third = redistribute(shares, rank_state, 2, 4)
    assert third["a"].tolist() == [[1.0] * 3]
    assert third["b"].tolist() == [[1]] * 5
    assert (int(third["c"]), third["d"]) == (0, 0)


def rollouts(
    cfg: config.RunCfg, ranks: Ranks, num_iterations: int
) -> list[dict[str, torch.Tensor]]:
    """Return a learner's rollouts in real worlds and its updates, by iteration."""
    with BUILDING:
        torch.manual_seed(1)
        env = make_env(cfg.env, cfg.sim, cfg.task, 5, ranks.share(cfg.env.num_envs))
        algorithm: Any = make_algorithm(cfg.algorithm, cfg.network, env.spec, "cpu", 5, ranks)
    runner = Runner(env, algorithm, cfg.runner, ranks=ranks)
    runner.start()
    iterations = []
    for _ in range(num_iterations):
        runner.collect()
        runner.update()
        storage: Any = runner.experience
        names = ("obs", "actions", "rewards", "state", "returns", "advantages")
        seen = {name: getattr(storage, name).clone() for name in names}
        iterations.append(seen | {"normaliser": torch.cat(algorithm.normalizer.mean_std())})
        runner.progress.iteration += 1
    env.close()
    return iterations


# A network's rounding of 1e-7, after 24 control steps with contacts
ROLLOUT_ROUNDING = 1e-5


@pytest.mark.parametrize(
    ("learning_rate", "share"),
    [*(pytest.param(1e-30, share, marks=pytest.mark.slow) for share in (SIZE, 4)), (1e-3, 4)],
)
def test_worlds_on_two_ranks_are_those_of_one(gait: Path, learning_rate: float, share: int) -> None:
    """With a fixed policy and whole blocks of worlds, rollouts are equal bit by bit on a CPU whose
    products ignore other rows. Otherwise they are equal up to rounding.
    """
    is_equal = share % SIZE == 0 and ignore_other_rows(share)

    def settings(num_envs: int) -> config.RunCfg:
        algorithm = {
            "num_minibatches": 1,
            "learning_rate": learning_rate,
            "critic_learning_rate": learning_rate,
        }
        over = {
            "algorithm": algorithm | {"num_epochs": 2},
            "env": {"num_envs": num_envs, "num_agents": 2},
            "task": {"gait": str(gait), "decision_period": 2},
            "sim": {"device": "cpu", "num_threads": 1},
            "runner": {"num_steps": 6},
            "network": {"hidden_sizes": [16]},
        }
        return config.resolve({}, over)[0]

    whole = rollouts(settings(2 * share), ALONE, 2)
    halves = on_ranks(2, lambda ranks: rollouts(settings(share), ranks, 2))
    for k, one in enumerate(whole):
        for name, value in one.items():
            dim = 2 if name in ("obs", "actions") else 1
            if name == "normaliser":
                both = halves[0][k][name]
            else:
                both = torch.cat([half[k][name] for half in halves], dim)
            if name in ("obs", "actions", "rewards", "state") and is_equal:
                assert torch.equal(both, value), (k, name)
            tolerance = ROLLOUT_ROUNDING
            assert torch.allclose(both, value, rtol=tolerance, atol=tolerance), (k, name)


def test_settings_of_a_rank_are_its_share_of_the_worlds() -> None:
    cfg, _ = config.resolve({}, {"env": {"num_envs": 12}, "sim": {"device": "cpu"}})
    rank_cfg = own_settings(cfg, Ranks(1, 3), Launch(1, 3, 1, 3), CPU)
    assert rank_cfg.env.num_envs == 4
    assert rank_cfg.sim.num_threads == max(1, num_cores() // 3)
    with pytest.raises(ConfigError, match="num_envs=12 .*multiple of the 5 ranks, for instance 10"):
        own_settings(cfg, Ranks(1, 5), Launch(1, 5, 1, 5), CPU)
    cfg, _ = config.resolve({}, {"runner": {"collectors": 2}, "sim": {"device": "cpu"}})
    with pytest.raises(
        ConfigError,
        match="collectors=2: collectors need a single learner, not 3 ranks; .*collectors=0",
    ):
        own_settings(cfg, Ranks(1, 3), Launch(1, 3, 1, 3), CPU)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("preset", ["smoke", "cuboid"])
def test_two_gpus_hold_equal_weights_after_updates(preset: str, tmp_path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    words = ["--preset", preset, "--device", "cuda", "--num_env_steps", "1"]
    words += ["--set", "runner.collectors=0", "--out", str(tmp_path / "run")]
    ended = subprocess.run([*launch, "-m", "harl_mapush.train", *words], check=False)
    assert ended.returncode == 0
