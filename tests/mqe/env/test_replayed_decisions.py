"""A replayed decision equals an eager decision and leaves equal state behind. Runs on a CPU with
stand-ins.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from harl_mapush.learning.update_graphs import Graphs
from mqe.env.environment import MultiAgentEnv
from mqe.sim.simulator import snapshot
from tests.support.cuda_graph_recording import launched, stand_in
from tests.support.observing import OnControlStep
from tests.support.pushing import make_env

NUM_ENVS = 4
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def graphs_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def make(**task: Any) -> MultiAgentEnv:
    return launched(make_env(NUM_ENVS, **({"decision_period": 2, "episode_length_s": 0.2} | task)))


def draw(generator: torch.Generator, env: MultiAgentEnv) -> Tensor:
    return 2.0 * torch.rand(env.num_envs, env.num_agents, 3, generator=generator) - 1.0


def test_replays_are_decisions_and_leave_the_same_behind():
    replayed = make()
    taken = make()
    taken.use_graphs = False
    generator = torch.Generator().manual_seed(0)
    for k in range(16):
        if k in (0, 8):
            for env in (replayed, taken):
                env.reset()
        if k == 11:
            replayed.use_graphs = False
        if k == 13:
            replayed.use_graphs = True
        actions = draw(generator, taken)
        ours = replayed.step(actions)
        theirs = taken.step(actions)
        for name in ours._fields[:-1]:
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), (k, name)
        assert ours.info.keys() == theirs.info.keys()
        if k < 11:  # Eager decisions command by a tensor of their own.
            assert torch.equal(*(env.task._controller.velocity for env in (replayed, taken))), k
        for name in ("rows", "forces", "robot_pos", "yaw", "frame"):
            assert torch.equal(getattr(replayed.state, name), getattr(taken.state, name)), (k, name)
        ended = ours.terminated[:, 0] | ours.truncated
        for name, values in taken.episode_metrics.items():
            assert torch.equal(
                replayed.episode_metrics[name][ended].nan_to_num(), values[ended].nan_to_num()
            ), (
                k,
                name,
            )
    assert replayed._graph._recorded is not None
    torch.testing.assert_close(
        replayed.state_dict(), taken.state_dict(), rtol=0, atol=0, equal_nan=True
    )
    assert replayed.statistics() == pytest.approx(taken.statistics(), rel=0, abs=0, nan_ok=True)
    assert replayed.statistics()["num_episodes"] > 0


@pytest.mark.parametrize("observation", ["sincos", "sets"])
def test_poses_from_outside_reach_replayed_decisions(observation):
    pose = {"goal_heading": 0.3, "success_heading": 0.2, "observation": observation}
    replayed = make(weights={"turn": 1.0}, **pose)
    taken = make(weights={"turn": 1.0}, **pose)
    taken.use_graphs = False
    generator = torch.Generator().manual_seed(0)
    for env in (replayed, taken):
        env.reset()
    for k in range(12):
        if k in (3, 8):
            goal = 3.0 * torch.rand(NUM_ENVS, 3, generator=generator)
            mask = torch.rand(NUM_ENVS, generator=generator) < 0.7
            for ours, theirs in zip(
                replayed.set_goal(goal, mask), taken.set_goal(goal, mask), strict=True
            ):
                assert torch.equal(ours, theirs)
        actions = draw(generator, taken)
        ours = replayed.step(actions)
        theirs = taken.step(actions)
        for name in ours._fields[:-1]:
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), (k, name)
        if k in (3, 8):
            assert bool((replayed.task.goal_heading[mask] != 0.3).all())
    assert replayed._graph._recorded is not None
    assert replayed.task.goal_heading.tolist() == pytest.approx([0.3] * NUM_ENVS)


def test_who_watches_every_control_step_sees_every_one_also_of_replayed_decisions():
    env = make()
    actions = torch.zeros(NUM_ENVS, 2, 3)
    seen = []
    env.reset()
    for _ in range(4):
        env.step(actions)
    with env.observed_by(OnControlStep(lambda: seen.append(snapshot(env.sim, 0).time))):
        for _ in range(4):
            env.step(actions)
    assert len(seen) == 4 * env.decision_period
    env.step(actions)
    assert len(seen) == 4 * env.decision_period


def test_a_graph_that_was_recorded_in_inference_mode_is_replayed_outside():
    env = make()
    actions = torch.zeros(NUM_ENVS, 2, 3)
    env.reset()
    for _ in range(2):
        env.step(actions)
    with torch.inference_mode():
        env.step(actions)
    env.step(actions)
    graphs = Graphs(CPU, torch.Generator())
    graphs._enabled = True
    with torch.inference_mode():
        for _ in range(3):
            graphs("double", lambda x: 2 * x, torch.ones(2))
    assert graphs("double", lambda x: 2 * x, torch.full((2,), 3.0)).tolist() == [6.0, 6.0]


def test_no_gradient_flows_into_a_decision():
    env = make()
    env.reset()
    for _ in range(5):
        actions = torch.zeros(NUM_ENVS, 2, 3, requires_grad=True)
        step = env.step(2 * actions)
        assert not any(getattr(step, name).requires_grad for name in step._fields[:-1])
    recorded = env._graph._recorded
    assert recorded is not None
    assert recorded.places[0].grad_fn is None


def test_a_recording_that_fails_is_made_again(monkeypatch):
    env = make()
    actions = torch.zeros(NUM_ENVS, 2, 3)
    env.reset()
    for _ in range(2):
        env.step(actions)
    with monkeypatch.context() as patch:
        patch.setattr(env.task, "observe", lambda *_: (_ for _ in ()).throw(MemoryError("no room")))
        with pytest.raises(MemoryError):
            env.step(actions)
    env.step(actions)
    assert env._graph._recorded is not None


def test_memory_that_was_replaced_is_recorded_anew():
    env = make()
    actions = torch.zeros(NUM_ENVS, 2, 3)
    env.reset()
    for _ in range(4):
        env.step(actions)
    old = env._graph._recorded
    assert old is not None
    env._graphs.generation += 1
    for _ in range(3):
        env.step(actions)
    assert env._graph._recorded not in (None, old)


def test_a_closed_environment_goes_at_once():
    env = make()
    env.reset()
    for _ in range(4):
        env.step(torch.zeros(NUM_ENVS, 2, 3))
    gone = weakref.ref(env)
    gc.collect()
    gc.disable()
    try:
        env.close()
        assert env._graph._recorded is None
        del env
        assert gone() is None
    finally:
        gc.enable()


def test_work_over_something_else_is_recorded_anew_and_the_last_forgotten():
    class Rollout:
        def __init__(self, value: float) -> None:
            self.values = torch.full((2,), value)

    graphs = Graphs(CPU, torch.Generator())
    graphs._enabled = True
    first = Rollout(1.0)
    second = Rollout(5.0)
    for rollout, expected in ((first, 2.0), (second, 10.0)):
        for _ in range(4):
            assert (
                graphs("double", lambda over=rollout: 2 * over.values, over=rollout).tolist()
                == [expected] * 2
            )
    gone = weakref.ref(first)
    del first, rollout
    assert gone() is None
