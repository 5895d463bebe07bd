"""The calculator against episodes written by hand, and against the real environment."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from harl_mapush.evaluation.calculator import evaluate, first_episodes
from mqe.tasks.episode_report import wilson_interval
from mqe.tasks.push import PUSH
from mqe.tasks.push.episode_report import REPORT, describe
from mqe.vec_env import TimeStep
from tests.support.pushing import make_env

NAN = math.nan


class Scripted:
    """An environment with fixed end times for its worlds, in decisions with two control steps.
    Every episode after the first succeeds.
    """

    num_agents = 2
    decision_period = 2
    step_dt = 0.02
    max_episode_length = 10
    device = torch.device("cpu")

    def __init__(
        self, ends_at: list[int], first: dict[str, list[float]], broken: list[bool]
    ) -> None:
        self.num_envs = len(ends_at)
        self.ends_at = tensor(ends_at)
        self.broken = tensor(broken)
        self.first = {name: tensor(values) for name, values in first.items()}
        self.episode_metrics: dict[str, Tensor] = {}
        self.report = PUSH.report

    def reset(self, *, staggered: bool = False) -> tuple[Tensor, Tensor]:
        self.decision = 0
        self.state = SimpleNamespace(to_goal=tensor([[0.0, 2.0]]).repeat(self.num_envs, 1))
        return torch.zeros(self.num_envs, 2, 4), torch.zeros(self.num_envs, 5)

    def observed_by(self, *observers: object) -> Any:
        assert not observers
        return nullcontext()

    def pause(self, mask: Tensor) -> None:
        self.resting = mask.clone()

    def step(self, actions: Tensor) -> TimeStep:
        assert actions.shape == (self.num_envs, 2, 3)
        self.decision += 1
        self.state.to_goal = torch.ones(self.num_envs, 2)
        ends_now = self.ends_at == self.decision
        again = self.ends_at < self.decision
        self.episode_metrics = {
            name: torch.where(again, 1.0, values) for name, values in self.first.items()
        }
        obs = torch.zeros(self.num_envs, 2, 4)
        state = torch.zeros(self.num_envs, 5)
        done = ends_now | again
        nothing = torch.zeros_like(done)
        return TimeStep(
            obs,
            state,
            torch.zeros(self.num_envs, 2),
            (done & ~self.broken).unsqueeze(1).expand(-1, 2),
            nothing,
            ~(ends_now & self.broken),
            obs,
            state,
            {},
        )


def still(obs: Tensor) -> Tensor:
    return torch.zeros(*obs.shape[:2], 3)


# Success after 3 and 8 control steps, a collision at spawn, a later one, a fall, a time-out, and a
# world that broke.
FIRST = {
    "success": [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0],
    "collision": [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0],
    "fall": [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
    "collapse": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
    "tangle": [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0],
    "episode_time_s": [0.06, 0.16, 0.02, 0.10, 0.10, 0.20, 0.04],
    "collaboration_degree": [0.5, 0.25, NAN, NAN, NAN, NAN, 1.0],
    "collaboration_degree_reference": [0.0, 0.5, NAN, NAN, NAN, NAN, 1.0],
    "contact_share_agent0": [0.75, 0.25, NAN, 0.5, 0.5, NAN, 1.0],
}


def make_scripted() -> Any:
    return Scripted([2, 4, 1, 3, 3, 5, 2], FIRST, [False] * 6 + [True])


def test_counts_first_episodes_only() -> None:
    metrics = evaluate(make_scripted(), still)
    assert metrics["num_episodes"] == 7
    assert metrics["success_rate"] == pytest.approx(2 / 7)
    assert metrics["success_ci95"] == pytest.approx(list(wilson_interval(2, 7)))
    assert metrics["lost_at_spawn_rate"] == pytest.approx(1 / 7)
    assert metrics["collision_rate"] == pytest.approx(2 / 7)
    assert metrics["fall_rate"] == pytest.approx(1 / 7)
    assert metrics["timeout_rate"] == pytest.approx(1 / 7)
    assert metrics["collapse_rate"] == 0.0
    assert metrics["tangle_rate"] == pytest.approx(2 / 7)
    assert metrics["num_broken"] == 1
    assert metrics["success_rate_spawned"] == pytest.approx(2 / 6)
    assert metrics["success_spawned_ci95"] == pytest.approx(list(wilson_interval(2, 6)))
    assert describe(metrics).splitlines()[-1].split() == [
        "broken",
        "simulations,",
        "no",
        "successes",
        "1",
    ]
    assert metrics["time_given_success_s"] == pytest.approx(0.11)
    assert metrics["finished_time_s"] == pytest.approx((0.06 + 0.16 + 5 * 0.20) / 7)
    assert metrics["collaboration_degree"] == pytest.approx(0.375)
    assert metrics["collaboration_degree_reference"] == pytest.approx(0.25)
    assert metrics["contact_share_agent0"] == pytest.approx(0.5)


def test_stops_when_all_are_done() -> None:
    env = make_scripted()
    first_episodes(env, still)
    assert env.resting.all()


def test_an_episode_that_a_collapse_ended_is_no_time_out_nor_is_a_success() -> None:
    # The collapse of the time-out, if it does not end episodes, is one more thing to know about it.
    # Nor may a success end episodes.
    for time, success, timeouts in ((0.12, 0.0, 0.0), (0.20, 0.0, 1.0), (0.20, 1.0, 0.0)):
        values = {name: tensor(values)[5:6] for name, values in FIRST.items()}
        values |= {"collapse": tensor([1.0]), "episode_time_s": tensor([time])}
        values |= {"broken": tensor([False]), "success": tensor([success])}
        metrics = REPORT.metrics(values, time_limit_s=0.20, step_dt=0.02)
        assert (metrics["collapse_rate"], metrics["timeout_rate"]) == (1.0, timeouts)


def test_all_lost_at_spawn_leaves_no_rate_of_the_others() -> None:
    episodes = {name: tensor(values)[2:3] for name, values in FIRST.items()}
    episodes |= {"broken": tensor([False])}
    metrics = REPORT.metrics(episodes, time_limit_s=20.0, step_dt=0.02)
    assert metrics["success_rate_spawned"] is None
    assert metrics["success_spawned_ci95"] is None
    assert "success rate" in describe(metrics)


def test_without_successes_there_is_nothing_to_average() -> None:
    episodes = {name: tensor(values)[2:4] for name, values in FIRST.items()}
    episodes |= {"broken": tensor([False, False])}
    metrics = REPORT.metrics(episodes, time_limit_s=20.0, step_dt=0.02)
    assert metrics["success_rate"] == 0.0
    assert metrics["finished_time_s"] == pytest.approx(20.0)
    for name in ("time_given_success_s", "collaboration_degree", "collaboration_degree_reference"):
        assert metrics[name] is None
    assert metrics["contact_share_agent0"] == pytest.approx(0.5)
    assert "success rate" in describe(metrics)
    assert "nan" not in describe(metrics).lower()
    assert "broken" not in describe(metrics)


@pytest.mark.parametrize(
    ("successes", "trials", "interval"),
    [
        (0, 10, (0.0, 0.277533)),
        (10, 10, (0.722467, 1.0)),
        (179, 300, (0.540271, 0.650618)),
        (50, 100, (0.403832, 0.596168)),
    ],
)
def test_wilson_interval(successes: int, trials: int, interval: tuple[float, float]) -> None:
    assert wilson_interval(successes, trials) == pytest.approx(interval, abs=1e-5)


def test_the_real_environment_loses_spawns_and_runs_out_of_time() -> None:
    env = make_env(64, spawn="independent", episode_length_s=0.4, decision_period=4)
    metrics = evaluate(env, still)
    assert metrics["num_episodes"] == 64
    assert metrics["success_rate"] == 0.0
    assert metrics["finished_time_s"] == pytest.approx(0.4)
    assert 0.0 < metrics["lost_at_spawn_rate"] <= metrics["collision_rate"] < 0.25  # type: ignore[operator]
    assert metrics["num_broken"] == 0
    shares = [
        metrics[f"{end}_rate"] for end in ("success", "collision", "fall", "collapse", "timeout")
    ]
    assert sum(shares) == pytest.approx(1.0)  # type: ignore[arg-type]


def test_stepping_the_object_into_the_goal_is_a_success_at_the_right_time() -> None:
    env = make_env(2, episode_length_s=0.4, decision_period=5)
    reached = SimpleNamespace(decisions=0)

    def carry(obs: Tensor) -> Tensor:
        # Put world 0's object on its goal before its third decision: success at control step 11.
        if reached.decisions == 2:
            start = env.scene.robot_qpos
            qpos = env.sim.data.qpos
            qpos[0, start : start + 2] = env.state.goal_pos[0, :2].to(qpos.dtype)
            # In the air, so that no robot is hit; not too high to end it.
            qpos[0, start + 2] = 1.0 - 0.45
        reached.decisions += 1
        return still(obs)

    metrics = evaluate(env, carry)
    assert metrics["success_rate"] == 0.5
    assert metrics["time_given_success_s"] == pytest.approx(0.22)
    assert metrics["finished_time_s"] == pytest.approx((0.22 + 0.4) / 2)
