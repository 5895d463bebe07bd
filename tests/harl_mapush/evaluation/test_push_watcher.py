"""Push measures, against hand-computed force sums."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from harl_mapush.evaluation import push_watcher
from harl_mapush.evaluation.calculator import first_episodes
from harl_mapush.evaluation.episodes import Request
from harl_mapush.evaluation.measuring import describe, measure
from harl_mapush.evaluation.push_watcher import PushTotals, PushWatcher
from harl_mapush.runs import evaluation_worlds
from mqe.env.observer import PhysicsStep
from mqe.tasks.episode_report import Metrics
from tests.support.pushing import make_env
from tests.support.rounding import FEW_STEPS

DT = 0.005  # [s] a physics step
X = (1.0, 0.0)
Y = (0.0, 1.0)


def summarized(
    totals: PushTotals, is_broken: tuple[bool, ...] = (False,), **ends: list[float]
) -> Metrics:
    """Return the metrics for ``totals``. By default, objects end at rest at the goal. ``ends``
    overrides it.
    """
    env = make_env(len(is_broken), totals.robots.shape[2], episode_length_s=0.02)
    watcher = PushWatcher(env)
    env.close()
    watcher._totals = totals
    watcher._end = torch.zeros_like(watcher._end)
    for row, name in enumerate(("distance", "speed", "heading_error")):
        if name in ends:
            watcher._end[row] = tensor(ends[name])
    return push_watcher.summarize({**watcher.episodes(), "broken": tensor(is_broken)})


def add(
    totals: PushTotals,
    forces: list[list[tuple[float, float]]],
    ahead: tuple[float, float] = X,
) -> None:
    """Add one world's physics steps, with the goal ahead on x and ``forces`` by step and robot."""
    force = tensor(forces).unsqueeze(1)  # (K, 1, A, 2)
    steps, _, agents, _ = force.shape
    totals.add(
        force,
        tensor(ahead).expand(steps, 1, agents, 2),
        tensor(X).expand(steps, 1, 2),
    )


def test_impulses_are_those_towards_the_goal() -> None:
    totals = PushTotals(1, 2)
    # Robot 0 pushes to the goal, then back; robot 1 aslant, and across.
    add(totals, [[(30.0, 0.0), (10.0, 40.0)], [(-10.0, 0.0), (0.0, 20.0)]])
    metrics = summarized(totals)
    assert metrics["useful_share_agent0"] == pytest.approx(2 / 3)
    assert metrics["useful_share_agent1"] == pytest.approx(1 / 3)
    assert metrics["lesser_useful_share"] == pytest.approx(1 / 3)


def test_a_robot_that_pushes_the_wrong_way_has_no_share() -> None:
    totals = PushTotals(1, 2)
    add(totals, [[(30.0, 0.0), (-10.0, 0.0)]])
    metrics = summarized(totals)
    assert metrics["useful_share_agent0"] == 1.0
    assert metrics["lesser_useful_share"] == 0.0


def test_times_over_the_ends_of_control_steps() -> None:
    totals = PushTotals(1, 2)
    none = (0.0, 0.0)
    weak = (0.9, 0.0)  # below the threshold
    push = (20.0, 0.0)
    # Robot 0 pushes in 7 steps, robot 1 in 2 of them.
    first = [push, none, push, push, push, push, push, none, none, push, weak, none]
    second = [weak, none, none, none, push, push, none, none, none, none, none, none]
    steps = [[none, none]] * 2 + [list(pair) for pair in zip(first, second, strict=True)]
    steps += [[none, none]] * 2
    for k in range(0, len(steps), 4):
        add(totals, steps[k : k + 4])
    metrics = summarized(totals)
    assert totals.team[:, 0].tolist() == pytest.approx([7 * DT, 2 * DT, 10 * DT])
    assert metrics["simultaneous_share"] == pytest.approx(2 / 7)
    assert metrics["touch_share_of_phase_agent0"] == pytest.approx(7 / 10)
    assert metrics["touch_share_of_phase_agent1"] == pytest.approx(2 / 10)
    assert metrics["touch_share_of_phase"] == pytest.approx((7 + 2) / (10 + 10))


def test_directions_are_those_of_the_robots_nose() -> None:
    totals = PushTotals(1, 1)
    steps = [[(10.0, 0.0)], [(0.0, 20.0)], [(-30.0, 0.0)], [(5.1, 8.6)], [(4.9, -8.7)]]
    add(totals, steps)  # the last two are 59 and 61 degrees from the nose
    metrics = summarized(totals)
    slant = (5.1**2 + 8.6**2) ** 0.5
    wide = (4.9**2 + 8.7**2) ** 0.5
    total = 60.0 + slant + wide
    assert metrics["push_ahead_share"] == pytest.approx((10.0 + slant) / total)

    turned = PushTotals(1, 1)
    add(turned, [[(10.0, 0.0)]], ahead=Y)
    assert summarized(turned)["push_ahead_share"] == 0.0


def test_episodes_are_pooled_by_how_much_is_pushed_and_broken_ones_left_out() -> None:
    totals = PushTotals(4, 1)
    force = tensor([30.0, 10.0, 0.0, 999.0]).view(1, 4, 1, 1) * tensor(X)
    ahead = torch.stack((tensor(X), tensor(Y), tensor(X), tensor(X))).view(1, 4, 1, 2)
    goal = tensor(X).expand(1, 4, 2)
    totals.add(force, ahead, goal)
    metrics = summarized(
        totals,
        (False, False, False, True),
        distance=[0.5, 1.5, 0.5, 0.0],
        speed=[0.01, 0.01, 0.03, 0.0],
    )
    assert metrics["push_ahead_share"] == pytest.approx(30 / 40)
    assert metrics["useful_share_agent0"] == 1.0  # of the two in which it pushed
    assert metrics["end_distance_m"] == pytest.approx(2.5 / 3)
    assert metrics["still_at_goal_rate"] == 0.25  # a broken episode is not still
    idle = summarized(PushTotals(1, 1))
    assert idle["push_ahead_share"] is None
    assert "nan" not in push_watcher.describe(idle)


class _Counted(PushWatcher):
    """Keeps every physics step."""

    def on_physics_step(self, step: PhysicsStep) -> None:
        super().on_physics_step(step)
        self.seen = [*getattr(self, "seen", []), step.state.contact_force.clone()]


def test_every_physics_step_of_an_episode_counts_and_none_after_it() -> None:
    env = make_env(2, episode_length_s=0.4, decision_period=5, goal_heading=0.0)
    start = env.scene.robot_qpos

    def hit(obs: Tensor) -> Tensor:
        if not int(env._steps.max()):
            # World 0: the object slides into robot 0; world 1: it is at its goal at once.
            way = env.sim.data.qpos[0, :2] - env.sim.data.qpos[0, start : start + 2]
            env.sim.data.qvel[0, env.scene.robot_qvel :][:2] = 3.0 * way / way.norm()
            env.sim.data.qpos[1, start : start + 2] = env.state.goal_pos[1, :2].to(
                env.sim.data.qpos.dtype
            )
        return torch.zeros(*obs.shape[:2], 3)

    watcher = _Counted(env)
    first_episodes(env, hit, watchers=[watcher])
    episodes = watcher.episodes()
    assert len(watcher.seen) == 80
    pushes = torch.stack(watcher.seen)[..., :2].norm(dim=-1)  # (80, 2, 2)
    pushing_time_s = (pushes[:, 0, 0] > 1.0).sum() * DT
    assert pushing_time_s > 0.0
    assert episodes["pushing_agent0"][0] == pytest.approx(float(pushing_time_s))
    assert episodes["pushing_agent0"][1] == 0.0
    assert episodes["end_distance"][1] < 1.0
    assert episodes["end_heading_error"][1] <= torch.pi / 4 + FEW_STEPS  # of a square
    env.close()


def test_worlds_that_are_finished_or_at_rest_add_no_push() -> None:
    env = make_env(3, episode_length_s=0.02)
    watcher = PushWatcher(env)
    env.reset()
    state = env.state.like(env.state.rows.clone())
    state.contact_force[:] = tensor([20.0, 0.0, 0.0])
    step: Any = SimpleNamespace(state=state)
    for _ in range(2):
        for _ in range(4):
            watcher.on_physics_step(step)
        watcher.on_control_step(state, live=tensor([True, False, True]))
        watcher.finish(tensor([False, False, True]))  # after the first control step
    episodes = watcher.episodes()
    assert episodes["pushing_agent0"].tolist() == pytest.approx([8 * DT, 0.0, 4 * DT])
    assert episodes["team_pushing"].tolist() == pytest.approx([8 * DT, 0.0, 4 * DT])
    assert episodes["end_distance"].isnan().tolist() == [False, True, False]
    assert episodes["impulse_agent0"].tolist() == pytest.approx([160 * DT, 0.0, 80 * DT])
    env.close()


def test_the_calculator_measures_without_changing_what_it_measures() -> None:
    over = {
        "task": {"episode_length_s": 0.4, "decision_period": 5, "spawn": "separated"},
        "sim": {"name": "mujoco", "device": "cpu", "num_threads": 1},
    }
    cfg = evaluation_worlds.settings(None, over)
    plain = Request(cfg, (0,), 3, function="scripted_team")
    measured = replace(plain, is_watched=True)
    before = measure(plain)
    after = measure(measured)
    assert {name: after[name] for name in before} == before
    assert len(after) > len(before)
    assert after["lesser_useful_share"] is None  # 0.4 s are too few to come near
    text = describe(measured, after)
    assert "the least useful share, mean            -" in text
    assert "pushed ahead, of all impulse" in text
