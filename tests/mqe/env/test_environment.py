"""The environment: latched endings, resets, broken worlds, exact continuation, statistics."""

# pyright: reportAttributeAccessIssue=false
import math
import os

import pytest
import torch
from torch import Tensor

from mqe.env.statistics import CAPACITY, EpisodeStatistics, weighted_means
from mqe.tasks.task import Disturbance
from tests.support.pushing import make_env


def _push_object_to_goal(env, worlds):
    """Put the object of ``worlds`` 0.5 m from its goal: success at the next control step."""
    start = env.scene.robot_qpos
    goal = env.sim.data.mocap_pos[worlds, 0, :2]
    env.sim.data.qpos[worlds, start : start + 2] = goal + torch.tensor(
        [0.5, 0.0], dtype=torch.float64
    )


def test_a_broken_world_is_reset_counted_and_masked_while_the_others_continue():
    env = make_env(4)
    twin = make_env(4)
    env.reset()
    twin.reset()
    actions = torch.zeros(4, 2, 3)
    env.sim.data.qpos[2, 0] = torch.nan
    step = env.step(actions)
    expected = twin.step(actions)
    assert step.valid.tolist() == [True, True, False, True]
    assert step.done.tolist() == [False, False, True, False]
    assert not step.terminated[2].any()
    for mine, theirs in (
        (step.obs, expected.obs),
        (step.reward, expected.reward),
        (step.final_obs, expected.final_obs),
    ):
        assert torch.isfinite(mine).all()
        assert torch.equal(mine[[0, 1, 3]], theirs[[0, 1, 3]])
    assert torch.isfinite(step.final_state).all()
    assert int(env.num_failed) == 1
    assert env.statistics()["num_episodes"] == 0  # an episode that broke is no episode
    assert env.step(actions).valid.all()
    assert torch.isfinite(env.sim.data.qpos).all()


def test_a_velocity_beyond_reason_is_a_broken_world():
    env = make_env(2)
    env.reset()
    env.sim.data.qvel[0, 0] = 1e7
    assert env.step(torch.zeros(2, 2, 3)).valid.tolist() == [False, True]


def test_a_contact_force_that_is_no_number_is_a_broken_world():
    env = make_env(2)
    env.reset()
    step = env.sim.step

    def poisoned(decimation, ctrl):
        step(decimation, ctrl)
        env.sim.data.sensordata[1, 0] = torch.nan

    env.sim.step = poisoned
    outcome = env.step(torch.zeros(2, 2, 3))
    assert outcome.valid.tolist() == [True, False]
    assert torch.isfinite(outcome.reward).all()
    assert torch.isfinite(outcome.final_obs).all()


def test_a_restart_begins_new_episodes_in_chosen_worlds_that_have_begun():
    env = make_env(3)
    twin = make_env(3)
    env.reset()
    twin.reset()
    actions = torch.full((3, 2, 3), 0.5)
    _push_object_to_goal(env, [2])
    _push_object_to_goal(twin, [2])
    step = env.step(actions)
    twin.step(actions)
    assert step.done.tolist() == [False, False, True]

    for worlds in (env, twin):
        worlds.state.forces[:2] = 5.0
    obs, state = env.restart(torch.tensor([True, False, True]))
    assert env.state.contact_force[:2, 0, 0].tolist() == [0.0, 5.0]
    assert env._episode.tolist() == [1, 0, 1]
    assert env._steps.tolist() == [0, twin.decision_period, 0]
    assert not torch.equal(obs[0], step.obs[0])
    # The others stay: one is under way, one was reset when it ended.
    assert torch.equal(obs[1:], step.obs[1:])
    assert torch.equal(state[1:], step.state[1:])
    assert env.statistics()["num_episodes"] == 1
    mine = env.step(actions)
    theirs = twin.step(actions)
    assert torch.equal(mine.obs[1:], theirs.obs[1:])
    assert torch.equal(mine.reward[1:], theirs.reward[1:])


def test_a_goal_from_outside_moves_in_chosen_worlds_and_pays_nothing_by_itself():
    env = make_env(2)
    env.reset()
    before = env.step(torch.zeros(2, 2, 3))
    goal = torch.tensor([[4.0, -3.0], [4.0, -3.0]])
    obs, state = env.set_goal(goal, torch.tensor([True, False]))
    assert env.state.goal_pos[0].tolist() == [4.0, -3.0, 0.0]
    assert not torch.equal(obs[0], before.obs[0])
    assert not torch.equal(state[0], before.state[0])
    assert torch.equal(obs[1], before.obs[1])

    step = env.step(torch.zeros(2, 2, 3))
    assert env.state.goal_pos[0].tolist() == [4.0, -3.0, 0.0]
    # The goal went metres away, the object did not.
    assert step.info["reward/progress"][0].abs().max() < 1e-3
    assert float(env.task.steps.nearest[0]) == pytest.approx(
        float(env.state.goal_distance[0]), abs=1e-3
    )
    env.set_goal(env.state.object_pos[:, :2].clone())
    assert env.step(torch.zeros(2, 2, 3)).terminated.all()
    with pytest.raises(ValueError, match=r"goal must be a tensor of the shape \(2, 2\)"):
        env.set_goal(torch.zeros(2))
    with pytest.raises(ValueError, match=r"not \[1.0, 2.0\]"):
        env.set_goal([1.0, 2.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mask must be"):
        env.set_goal(torch.zeros(env.num_envs, 2), torch.ones(1, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"must be 2 booleans, not \(2,\) of torch.float32"):
        env.set_goal(torch.zeros(2, 2), torch.ones(2))
    unknown = torch.full((env.num_envs, 2), torch.nan)
    with pytest.raises(ValueError, match="goal must be finite"):
        env.set_goal(unknown)
    env.set_goal(unknown, torch.zeros(env.num_envs, dtype=torch.bool))


def test_staggered_first_episodes_end_spread_over_the_time_limit_and_statistics_begin_after_it():
    env = make_env(10, decision_period=5, episode_length_s=1.0)  # 50 control steps are 10 decisions
    env.reset(staggered=True)
    lengths = torch.zeros(10, dtype=torch.int64)
    for t in range(1, 11):
        ends = env.step(torch.zeros(10, 2, 3)).truncated
        lengths[ends & (lengths == 0)] = t
        assert env.statistics()["num_episodes"] == (2 if t == 10 else 0)
    # Of ten golden steps two share a bin.
    assert lengths.sort().values.tolist() == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        10,
        10,
    ]
    for _ in range(10):
        env.step(torch.zeros(10, 2, 3))
    metrics = env.statistics()
    assert metrics["num_episodes"] == 12
    assert metrics["episode_time_s"] == pytest.approx(1.0)


def test_an_ending_inside_a_decision_is_latched_there():
    """The first of five control steps succeeds: the time is 1 step, the reward one step's."""
    env = make_env(2, decision_period=5)
    single = make_env(2)
    env.reset()
    single.reset()
    for environment in (env, single):
        _push_object_to_goal(environment, [0])
    step = env.step(torch.zeros(2, 2, 3))
    first = single.step(torch.zeros(2, 2, 3))
    assert step.terminated[:, 0].tolist() == [True, False]
    assert not step.truncated.any()
    assert torch.equal(step.reward[0], first.reward[0])
    assert env.statistics()["episode_time_s"] == pytest.approx(0.02)
    assert env.statistics()["success_rate"] == 1.0
    total = torch.stack(list(step.info.values())).sum(0)
    torch.testing.assert_close(total, step.reward)


def test_a_world_that_breaks_after_its_end_shows_nothing_of_it():
    env = make_env(2, decision_period=2)
    env.reset()
    _push_object_to_goal(env, [0])
    step = env.sim.step
    calls = []

    def poisoned(decimation, ctrl):
        step(decimation, ctrl)
        calls.append(decimation)
        if len(calls) == 2:
            env.sim.data.qpos[0, 0] = torch.nan

    env.sim.step = poisoned
    outcome = env.step(torch.zeros(2, 2, 3))
    assert outcome.valid.all()
    assert outcome.terminated[:, 0].tolist() == [True, False]
    assert env.statistics()["success_rate"] == 1.0
    for shown, first in ((outcome.final_obs, outcome.obs), (outcome.final_state, outcome.state)):
        torch.testing.assert_close(shown[0], first[0])
    assert torch.isfinite(outcome.reward).all()


def test_rewards_of_a_decision_add_up_over_its_control_steps():
    env = make_env(3, decision_period=4)
    single = make_env(3)
    env.reset()
    single.reset()
    actions = torch.zeros(3, 2, 3)
    step = env.step(actions)
    expected = sum(single.step(actions).reward for _ in range(4))
    torch.testing.assert_close(step.reward, expected)
    assert torch.equal(env.sim.data.qpos, single.sim.data.qpos)


def test_the_clock_truncates_at_the_limit_and_shows_the_last_state():
    env = make_env(2, episode_length_s=0.1, decision_period=5)
    env.reset()
    step = env.step(torch.zeros(2, 2, 3))
    assert step.truncated.all()
    assert not step.terminated.any()
    assert not torch.equal(step.final_obs, step.obs)  # obs is the next episode's first
    assert env.statistics()["episode_time_s"] == pytest.approx(0.1)
    assert env.statistics()["num_episodes"] == 2


def test_progress_is_measured_from_the_control_step_before():
    env = make_env(2)
    env.reset()
    before = (env.state.goal_pos - env.state.object_pos)[:, :2]
    start = env.scene.robot_qvel
    # 1 m/s towards the goal.
    env.sim.data.qvel[0, start : start + 2] = (before[0] / before[0].norm()).double()
    step = env.step(torch.zeros(2, 2, 3))
    after = (env.state.goal_pos - env.state.object_pos)[:, :2]
    moved = before.norm(dim=1) - after.norm(dim=1)
    assert 0.015 < float(moved[0]) < 0.021
    weight = env.task.terms.rewards.weights["progress"]
    torch.testing.assert_close(
        step.info["reward/progress"], weight * moved.unsqueeze(1).expand(2, 2), atol=1e-5, rtol=0
    )


def test_progress_does_not_straddle_a_reset():
    env = make_env(2)
    env.reset()
    _push_object_to_goal(env, [0])
    env.step(torch.zeros(2, 2, 3))
    step = env.step(torch.zeros(2, 2, 3))  # the first step of the new episode
    assert step.info["reward/progress"][0].abs().max() < 0.05


def test_a_new_episode_has_felt_no_contact_yet():
    env = make_env(2)
    env.reset()
    _push_object_to_goal(env, [0])
    step = env.sim.step

    def touched(decimation, ctrl):
        step(decimation, ctrl)
        env.sim.data.sensordata[:] = 5.0

    env.sim.step = touched
    assert env.step(torch.zeros(2, 2, 3)).done.tolist() == [True, False]
    assert env.state.contact_force[0].abs().max() == 0.0
    assert (env.state.contact_force[1] == 5.0).all()


@pytest.mark.parametrize("shape", [(2, 1), (2, 2, 1), (1, 2, 3), (2, 2, 4), (2, 6)])
def test_actions_of_another_shape_are_refused(shape):
    env = make_env(2)
    env.reset()
    with pytest.raises(ValueError, match=r"the shape \(2, 2, 3\) .*, not \(" + str(shape[0])):
        env.step(torch.zeros(shape))


def test_the_environment_resumes_exactly_from_its_state():
    env = make_env(3, episode_length_s=0.4, decision_period=2)
    env.reset(staggered=True)
    generator = torch.Generator().manual_seed(0)
    actions = torch.rand(14, 3, 2, 3, generator=generator) * 2 - 1
    for k in range(6):
        env.step(actions[k])
    state = env.state_dict()
    expected = [env.step(actions[k]) for k in range(6, 14)]  # over a time-out
    other = make_env(3, episode_length_s=0.4, decision_period=2)
    other.reset()
    obs, critic_state = other.load_state_dict(state)
    for k, theirs in zip(range(6, 14), expected, strict=True):
        mine = other.step(actions[k])
        assert torch.equal(mine.obs, theirs.obs)
        assert torch.equal(mine.reward, theirs.reward)
        assert torch.equal(mine.truncated, theirs.truncated)
    assert other.statistics() == pytest.approx(env.statistics(), nan_ok=True)
    assert obs.shape == (3, 2, 10)
    assert critic_state.shape == (3, 17)


def test_statistics_average_the_last_thousand_and_leave_out_what_does_not_count():
    statistics = EpisodeStatistics(("time", "degree"), (), 2500, torch.device("cpu"))

    def record(count: int, time: Tensor | float, degree: float, ended: bool = True) -> None:
        metrics = torch.zeros(count, 2)
        metrics[:, 0] = time
        metrics[:, 1] = degree
        statistics.record(torch.full((count,), ended), metrics)

    record(600, 1.0, torch.nan)
    assert statistics.means()["time"] == 1.0
    assert statistics.means()["degree"] != statistics.means()["degree"]
    record(600, 2.0, 0.5)
    means = statistics.means()
    assert means["num_episodes"] == CAPACITY
    assert means["time"] == pytest.approx(1.6)  # 400 of the first, 600 of the second
    assert means["degree"] == 0.5
    record(600, 0.0, 0.0, ended=False)
    assert statistics.means()["time"] == pytest.approx(1.6)
    record(2500, torch.arange(2500.0), 0.0)
    assert statistics.means()["time"] == pytest.approx(1999.5)  # the newest 1,000 of 2,500 at once
    record(2500, torch.arange(2500.0), 0.0)
    assert statistics.means()["time"] == pytest.approx(1999.5)  # round the ring
    statistics.reset()
    assert statistics.means()["num_episodes"] == 0
    record(3, 4.0, 1.0)
    assert statistics.means() == {"time": 4.0, "degree": 1.0, "num_episodes": 3}


def test_a_ring_of_another_length_begins_anew():
    old = EpisodeStatistics(("time",), (), 2500, torch.device("cpu"))
    old.record(torch.ones(2500, dtype=torch.bool), torch.ones(2500, 1))
    same = EpisodeStatistics(("time",), (), 2500, torch.device("cpu"))
    same.load_state_dict(old.state_dict())
    assert same.means() == old.means() == {"time": 1.0, "num_episodes": CAPACITY}
    new = EpisodeStatistics(("time",), (), 2, torch.device("cpu"))
    new.load_state_dict(old.state_dict())
    assert new.means()["num_episodes"] == 0


def test_an_episodes_return_is_the_sum_of_its_rewards():
    env = make_env(6, decision_period=2, episode_length_s=0.16)
    generator = torch.Generator().manual_seed(0)
    env.reset()
    total = torch.zeros(6)
    num_ended = 0
    for _ in range(9):
        step = env.step(2.0 * torch.rand(6, 2, 3, generator=generator) - 1.0)
        total += step.reward.mean(dim=1)
        ended = step.done & step.valid
        if ended.any():
            torch.testing.assert_close(env.episode_metrics["return"][ended], total[ended])
        num_ended += int(ended.sum())
        total.masked_fill_(step.done, 0.0)
    assert num_ended >= 12


def test_kicks_and_forces_reach_the_robots_trunks(monkeypatch):
    env = make_env(2)
    env.reset()
    kick = torch.zeros(2, 2, 3)
    force = torch.zeros(2, 2, 3)
    kick[1, 1, 0] = 3.0
    force[0, 1, 2] = 40.0
    features = env.task.features._replace(disturb=lambda steps: Disturbance(kick, force))
    monkeypatch.setattr(env, "_features", features)
    before = env.sim.data.qvel.clone()
    env._disturb(None)
    second = env.scene.robot_qvel // 2
    changed = torch.zeros_like(before)
    changed[1, second] = 3.0
    assert torch.equal(env.sim.data.qvel - before, changed)
    assert env.sim.data.xfrc_applied[0, env.scene.trunk_bodies[1]].tolist() == [
        0.0,
        0.0,
        40.0,
        0.0,
        0.0,
        0.0,
    ]
    assert int((env.sim.data.xfrc_applied != 0.0).sum()) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", ["step", "reset"])
def test_worlds_made_before_a_fork_are_refused_in_the_child(name):
    """MuJoCo's threads do not survive a fork, so a step would hang."""
    env = make_env(num_envs=4)
    env.reset()
    actions = torch.zeros(4, env.num_agents, 3)
    env.step(actions)
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            env.step(actions) if name == "step" else env.reset()
        except RuntimeError as error:
            os.write(write_end, str(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        words = pipe.read()
    os.waitpid(child, 0)
    assert words == (
        f"these worlds belong to process {os.getpid()}, and this is its fork {child}; make the "
        "environment in the process that steps it"
    )
    env.step(actions)
    env.close()


def test_means_over_several_environments_are_weighted_by_their_episodes():
    parts = [
        {"a": 1.0, "num_episodes": 3},
        {"a": 5.0, "b": 2.0, "num_episodes": 1},
        {"a": math.nan, "num_episodes": 0},
    ]
    assert weighted_means(parts) == {"a": 2.0, "b": 2.0, "num_episodes": 4}
