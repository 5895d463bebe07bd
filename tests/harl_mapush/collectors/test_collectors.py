"""harl_mapush.collectors: settings, collected blocks and health."""

from __future__ import annotations

import inspect
import math
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harl_mapush import config
from harl_mapush.algorithms.entries import ALGORITHMS, make_algorithm
from harl_mapush.collectors.async_runner import health_lines, merge_rewards
from harl_mapush.collectors.collector import BlockReport, Collector, Identity, build
from harl_mapush.collectors.collector_settings import settled
from harl_mapush.collectors.exchange import new_block
from harl_mapush.collectors.launchers import last_line
from harl_mapush.collectors.learner import ReplayLearner
from harl_mapush.learning.off_policy.replay_buffer import RingReplay, Transition, replay_shape
from harl_mapush.learning.settings import NetworkCfg
from mqe import cores
from mqe.config import ConfigError, to_dict
from mqe.controllers.blocks import SIZE
from mqe.env.statistics import weighted_means
from mqe.registry import resolve_device
from tests.support.products import ignore_other_rows
from tests.support.toy import ToyEnv
from tests.support.toy_collectors import make_runner, make_toy, settings
from tests.support.transitions import GAMMA, transition

SHAPE = replay_shape(
    40, 2, num_agents=2, obs_size=3, action_size=2, num_views=1, state_size=4, num_rings=2
)


def rings(n_step: int = 3) -> RingReplay:
    return RingReplay(SHAPE, n_step, GAMMA, torch.Generator().manual_seed(0), "cpu")


def test_sums_never_cross_from_one_ring_to_another_nor_a_cut():
    replay = rings()
    for k in range(4):
        replay.add(transition(k), 0)
        replay.add(transition(10 + k), 1)
    first = SHAPE.ring_size
    assert (
        replay.look_up(torch.tensor([first])).returns.item()
        == 1000.0 + 0.5 * 1100.0 + 0.25 * 1200.0
    )
    replay.cut(1)
    replay.add(transition(20), 1)
    batch = replay.look_up(torch.tensor([first + 2 * 2, first + 3 * 2]))
    assert batch.returns.flatten().tolist() == [1200.0 + 0.5 * 1300.0, 1300.0]
    assert batch.discount.tolist() == [GAMMA**2, GAMMA]  # as at a time-out
    assert batch.next_obs[:, 0, 0].tolist() == [1300.5, 1300.5]


def test_transitions_of_all_rings_are_drawn_alike_however_many_each_has():
    replay = rings(1)
    for k in range(9):
        replay.add(transition(k), 0)
    replay.add(transition(50), 1)
    share = (replay.sample(4000).obs[:, 0, 0] >= 5000.0).double().mean().item()
    assert share == pytest.approx(0.1, abs=0.02)
    assert len(replay) == 20
    again = rings(1)
    again.load_state_dict(replay.state_dict())
    assert torch.equal(again.here, replay.here)
    assert torch.equal(again.newest, replay.newest)


def shown_health() -> tuple[str, ...]:
    """Return the lines of a collector and a learner."""
    scalars = {
        "ingest/transitions_per_s": 1203.0,
        "collector0/env_steps_per_s": 4812.0,
        "collector0/waited": 0.03,
        "learner/waited": 0.12,
        "learner/update_ratio": 0.5,
    }
    post = SimpleNamespace(number=0, num_transitions=1_204_224, version=18196)
    fleet = SimpleNamespace(posts=[post], num_queued=3, capacity=64)
    team = SimpleNamespace(num_updates=18200, cfg=SimpleNamespace(warmup=5000))
    return health_lines(scalars, fleet, team, 7000)  # type: ignore[arg-type]


def test_health_is_one_line_a_part():
    assert shown_health() == (
        "[Worker 0] Sent 1204224 transitions | Rate 4812.0 steps/s | Waited 3 % | "
        "Policy 18196 (lag 4)",
        "[BufferFiller] Rate 1203.0/s | Buffer 7000 | Queue 3/64",
        "[AsyncTrainer] Buffer warmup 5000/5000 | Updates 18200 (ratio 0.5) | Waited 12 %",
    )


def report(num_valid: float, reward: float, **statistics: float) -> BlockReport:
    return BlockReport({"reward/near": reward}, num_valid, 10.0 - num_valid, statistics, None)


def test_what_collectors_say_counts_by_how_much_it_stands_for():
    blocks = [
        report(6.0, 1.0, success_rate=0.5, num_episodes=30),
        report(2.0, 5.0, success_rate=0.9, num_episodes=10),
    ]
    rewards = merge_rewards(blocks, torch.device("cpu"))
    assert {name: value.item() for name, value in rewards.items()} == {
        "reward/near": 2.0,
        "rollout/num_broken": 12.0,
    }
    assert weighted_means([block.statistics for block in blocks]) == {
        "num_episodes": 40,
        "success_rate": pytest.approx(0.6),
    }


def test_the_last_line_is_what_was_said_and_no_stack(tmp_path):
    log = tmp_path / "0.txt"
    log.write_text(
        '8 worlds\nCurrent thread 0x1 (most recent call first):\n  File "x.py", line 3 in step\n'
    )
    assert last_line(log) == "8 worlds"
    assert last_line(tmp_path / "none") == "(none)"


@pytest.mark.parametrize("n_step", [1, 3])
def test_collected_blocks_become_the_replay_of_a_learner_that_collects_itself(n_step):
    env, other = (ToyEnv(8, death_rate=0.05, failure_rate=0.1) for _ in range(2))
    cfg = settings(1, 8, 640, algorithm={"n_step": n_step})
    teams = [make_algorithm(cfg.algorithm, cfg.network, env.spec, "cpu", 1) for _ in range(2)]
    collector = Collector(env, teams[0], 4)
    block = new_block(teams[0].replay_shape(8), 4)
    inside, outside = (team.make_experience(4, 8) for team in teams)
    obs, state = other.reset(staggered=True)
    inside.start(obs, state)
    for _ in range(12):
        collector.collect(block)
        for stored in zip(*block, strict=True):
            outside.store(Transition(*stored))
        for t in range(4):
            decision = teams[1].act(obs)
            step = other.step(decision.actions)
            inside.add(t, obs, decision, step)
            obs = step.obs
    assert torch.equal(inside.replay.here, outside.replay.here)
    assert torch.equal(inside.replay.there, outside.replay.there)
    assert torch.equal(inside.replay.flags, outside.replay.flags)
    assert torch.equal(inside._discounted, outside._discounted)


def test_weights_are_published_after_the_updates_for_each_decision():
    cfg = settings(1, 8, 640, algorithm={"warmup": 8, "update_ratio": 0.25})
    runner = make_runner(cfg)
    block = new_block(runner.experience.replay.shape, 4)
    make_toy(to_dict(cfg), Identity(0, 1)).collect(block)
    for decision in zip(*block, strict=True):
        runner.experience.store(Transition(*decision))
    versions: list[int] = []
    exchange = SimpleNamespace(publish=lambda actors, num_updates: versions.append(num_updates))
    fleet: Any = SimpleNamespace(exchange=exchange, look=lambda: None)
    runner._update(fleet)
    assert versions == [2, 4, 6, 8]


def test_a_share_of_the_worlds_is_the_same_worlds_on_a_cpu():
    over = {
        "sim": {"name": "mujoco", "device": "cpu", "num_threads": 1},
        "env": {"num_envs": 2 * SIZE},
        "algorithm": {"name": "hasac"},
        "network": {"hidden_sizes": [8]},
        "runner": {"num_steps": 2},
    }
    cfg, _ = config.resolve(over, {})
    whole = build(cfg, Identity(0, 1))
    second = build(cfg, Identity(1, 2))
    again = build(cfg, Identity(1, 2, num_starts=1))
    actions = torch.zeros(2 * SIZE, 2, 3)
    states = [made.env.reset(staggered=True) for made in (whole, second, again)]
    assert torch.equal(states[0][0][SIZE:], states[1][0])
    # A collector that starts again has other episodes.
    assert not torch.equal(states[1][0], states[2][0])
    for _ in range(2):
        all_worlds = whole.env.step(actions)
        share = second.env.step(actions[SIZE:])
    # A network's rounding, after two control steps
    tolerance = 0.0 if ignore_other_rows(SIZE) else 1e-5
    for ours, theirs in ((all_worlds.obs, share.obs), (all_worlds.reward, share.reward)):
        torch.testing.assert_close(ours[SIZE:], theirs, rtol=0.0, atol=tolerance)
    for made in (whole, second, again):
        made.close()


@pytest.mark.parametrize("start", [None, "pretrained:cuboid"])
def test_a_collector_acts_at_random_at_first_unless_the_run_starts_from_a_team(start):
    over = {
        "sim": {"name": "mujoco", "device": "cpu", "num_threads": 1},
        "env": {"num_envs": 1},
        "algorithm": {"name": "hasac"},
        "network": {"hidden_sizes": [8]},
        "runner": {"init_from": start},
    }
    made = build(config.resolve(over, {})[0], Identity(0, 1))
    assert made.team.spec.is_trained == (start is not None)
    made.close()


@pytest.mark.parametrize(
    ("over", "said"),
    [
        (
            {"algorithm": {"name": "happo"}, "runner": {"collectors": 2}},
            "happo cannot learn from collectors",
        ),
        (
            {"algorithm": {"name": "hasac"}, "env": {"num_envs": 10}, "runner": {"collectors": 4}},
            "set env.num_envs=12, for instance",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(over, said):
    with pytest.raises(ConfigError, match=said):
        settled(config.resolve(over, {})[0])


def test_collectors_share_the_cores_that_the_run_may_use_not_the_machines(monkeypatch):
    monkeypatch.setattr(cores, "cpu_quota", lambda: math.inf)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    over = {
        "algorithm": {"name": "hasac"},
        "env": {"num_envs": 8},
        "sim": {"name": "mujoco", "device": "cpu"},
    }
    for collectors, threads in ((1, 6), (2, 3), (4, 1), (8, 1)):
        cfg, _ = config.resolve(over | {"runner": {"collectors": collectors}}, {})
        assert settled(cfg).sim.num_threads == threads
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert cores.num_cores() == 64


@pytest.mark.parametrize(
    "name", [name for name, entry in ALGORITHMS.items() if entry.cfg.takes_collectors]
)
def test_every_algorithm_that_takes_collectors_has_what_they_use(name):
    entry = ALGORITHMS[name]
    team = make_algorithm(entry.cfg(), NetworkCfg((8,)), ToyEnv(1).spec, "cpu", 1)
    assert all(hasattr(team, value) for value in ReplayLearner.__annotations__)
    for handle, annotation in vars(ReplayLearner).items():
        if inspect.isfunction(annotation) and not handle.startswith("_"):
            ours = inspect.signature(getattr(type(team), handle))
            assert list(ours.parameters) == list(inspect.signature(annotation).parameters), handle
    assert len(team.unique_actors) == (1 if team.cfg.share_param else 2)


def test_the_learners_device_is_named_or_found():
    where = "runner.learner_device"
    assert resolve_device("cpu", where, True) == torch.device("cpu")
    with pytest.raises(ConfigError, match="^runner.learner_device: no cuda:99 here"):
        resolve_device("cuda:99", where, True)
    with pytest.raises(ConfigError, match="unknown device 'banana'"):
        resolve_device("banana", where, True)
