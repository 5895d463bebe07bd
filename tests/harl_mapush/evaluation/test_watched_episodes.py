"""Episodes with watchers, and episodes that continue after success."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import tensor

from harl_mapush.evaluation.calculator import evaluate, first_episodes
from harl_mapush.evaluation.push_watcher import PushWatcher
from tests.support.pushing import make_env


def still(obs: torch.Tensor) -> torch.Tensor:
    return torch.zeros(*obs.shape[:2], 3)


def test_an_episode_continues_after_success_which_counts_at_its_time() -> None:
    env = make_env(3, episode_length_s=0.4, decision_period=5, success_ends=False)
    reached = SimpleNamespace(decisions=0)

    def carry(obs: torch.Tensor) -> torch.Tensor:
        # World 0's object is on its goal for one decision, the third; world 1's to the end.
        start = env.scene.robot_qpos
        for world in (0, 1):
            if reached.decisions == 2:
                env.sim.data.qpos[world, start : start + 2] = env.state.goal_pos[world, :2].to(
                    env.sim.data.qpos.dtype
                )
                env.sim.data.qpos[world, start + 2] = 1.0 - 0.45
        if reached.decisions == 3:
            env.sim.data.qpos[0, start : start + 2] = 0.0
        reached.decisions += 1
        return still(obs)

    pushing = PushWatcher(env)
    episodes = first_episodes(env, carry, watchers=[pushing])
    assert reached.decisions == 4  # to the limit
    assert episodes["success"].tolist() == [1.0, 1.0, 0.0]
    assert episodes["episode_time_s"].tolist() == pytest.approx([0.22, 0.22, 0.4])
    assert (pushing.episodes()["end_distance"] < 1.0).tolist() == [False, True, False]
    env.close()


@pytest.mark.parametrize(("name", "equal"), [("tblock", 0.0), ("cuboid", 0.5 * math.pi)])
def test_the_heading_that_counts_is_the_one_in_force(name: str, equal: float) -> None:
    env = make_env(2, object=name, goal_heading=0.0, success_ends=False, episode_length_s=0.1)

    def turn_the_goals(obs: torch.Tensor) -> torch.Tensor:
        if int(env._steps.max()) == 2:
            heading = env.state.object_yaw + equal + tensor([0.05, 0.7])
            env.set_goal(torch.cat((env.state.object_pos[:, :2], heading.unsqueeze(1)), dim=1))
        return still(obs)

    pushing = PushWatcher(env)
    before = env.task.goal_heading.tolist()
    first_episodes(env, turn_the_goals, watchers=[pushing])
    assert before == env.task.goal_heading.tolist() == [0.0, 0.0]  # the next episodes have begun
    error = pushing.episodes()["end_heading_error"]
    assert error.tolist() == pytest.approx([0.05, 0.7], abs=0.02)
    env.close()


def test_watching_changes_nothing() -> None:
    both = []
    for is_watched in (False, True):
        env = make_env(4, episode_length_s=0.4)
        watchers = [PushWatcher(env)] if is_watched else []
        both.append(first_episodes(env, still, watchers=watchers))
        env.close()
    for name, values in both[0].items():
        torch.testing.assert_close(both[1][name], values, rtol=0, atol=0, equal_nan=True)


def test_worlds_at_rest_stay_as_they_are_and_change_nothing_for_others() -> None:
    rows = []
    for is_resting in (False, True):
        env = make_env(4, episode_length_s=0.1)
        env.reset()
        mask = tensor([False, is_resting, False, False])
        before = env.sim.data.qpos[1].clone()
        env.pause(mask)
        for _ in range(7):
            step = env.step(torch.zeros(4, 2, 3))
            assert not (is_resting and bool(step.done[1]))
        assert torch.equal(env.sim.data.qpos[1], before) == is_resting
        assert int(env.num_failed) == 0
        rows.append(env.state.rows[:, [0, 2, 3]].clone())
        env.reset()
        env.step(torch.zeros(4, 2, 3))
        assert not torch.equal(env.sim.data.qpos[1], before)  # it wakes
        env.close()
    assert torch.equal(*rows)


def test_episodes_that_may_go_on_after_success_are_measured_alike() -> None:
    metrics = [
        evaluate(make_env(8, episode_length_s=0.4, success_ends=ends), still)
        for ends in (True, False)
    ]
    assert metrics[0] == metrics[1]  # nobody succeeds
