"""Finite nonsense breaks a world: limits, and the reported cause."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from harl_mapush import train
from mqe.env.environment import MultiAgentEnv
from tests.support.cuda_graph_recording import launched, stand_in
from tests.support.operations import operations_of_a_decision
from tests.support.pushing import make_env
from tests.support.tiny_runs import TINY

NOTHING = torch.zeros(3, 2, 3)
# where the second robot's and the object's positions begin in qpos
SECOND = 19
OBJECT = 38


def outcome(env: MultiAgentEnv) -> list[bool]:
    return env.step(NOTHING).valid.tolist()


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (0, 1e4, "robot0: x [m] was 1e+04, not -13 to 13"),
        (SECOND + 1, -13.5, "robot1: y [m] was -13.5, not -13 to 13"),
        (OBJECT, 1e9, "object: x [m] was 1e+09, not -13 to 13"),
        (SECOND + 2, 3.5, "robot1: z [m] was 3.5, not 0 to 3"),
        (2, -0.2, "robot0: z [m] was -0.2, not 0 to 3"),
        (3, 50.0, "robot0: quaternion was 50, not -1.1 to 1.1"),
        (7, 5.0, "[rad] was 5, not -3.803 to 3.803"),
        (9, math.inf, "[rad] was inf, not -5.697 to 2.084"),
    ],
)
def test_a_number_beyond_reason_is_a_broken_world_and_is_named(
    at: int, value: float, words: str
) -> None:
    env = make_env(3)
    recorder = env.record_broken_worlds()
    env.reset()
    env.step(NOTHING)
    step = env.sim.step
    env.sim.step = lambda decimation, ctrl: None  # MuJoCo itself would mend some of these
    env.sim.data.qpos[1, at] = value
    assert outcome(env) == [True, False, True]
    cause = recorder.take_cause()
    assert cause is not None
    assert cause.startswith("world 1: ")
    assert words in cause
    assert recorder.take_cause() is None
    env.sim.step = step
    assert outcome(env) == [True] * 3


def test_a_robot_inside_the_object_is_a_broken_world() -> None:
    env = make_env(3)
    recorder = env.record_broken_worlds()
    env.reset()
    env.sim.step = lambda decimation, ctrl: None
    env.sim.data.qpos[2, :3] = env.sim.data.qpos[2, OBJECT : OBJECT + 3] + torch.tensor(
        [0.2, 0.1, 0.05]
    )
    assert outcome(env) == [True, True, False]
    assert recorder.take_cause() == (
        "world 2: robot0: distance to the object's middle [m] was 0.2291, not 0.25 or more"
    )


@pytest.mark.slow
def test_what_robots_do_in_an_ordinary_episode_is_within_all_limits() -> None:
    env = make_env(64, 4, spawn="independent", episode_length_s=0.1)
    env.reset()
    for _ in range(20):  # four spawns of 64 worlds, many of them one robot in another
        assert env.step(torch.zeros(64, 4, 3)).valid.all()


def test_replayed_graphs_find_the_cause_of_the_first_broken_control_step(monkeypatch) -> None:
    stand_in(monkeypatch)
    causes = []
    for env in (make_env(3, decision_period=2), launched(make_env(3, decision_period=2))):
        recorder = env.record_broken_worlds()
        env.reset()
        for step in range(12):
            if step == 8:
                env.sim.data.qpos[2, OBJECT] = 20.0
            env.step(NOTHING)
        causes.append(recorder.take_cause())
    assert causes == ["world 2: object: x [m] was 20, not -13 to 13"] * 2


def test_recording_takes_four_operations_a_control_step() -> None:
    counts = []
    for is_recording in (False, True):
        env = make_env(3, decision_period=5)
        if is_recording:
            env.record_broken_worlds()
        counts.append(operations_of_a_decision(env))
    assert 20 <= counts[1] - counts[0] <= 23


def broken_run(gait: Path, run: Path, monkeypatch, *words: str) -> int:
    """Train until the run aborts. Each step throws world 2's object out of the arena."""
    evaluate = MultiAgentEnv._step

    def thrown(env: MultiAgentEnv, actions: torch.Tensor):
        env.sim.data.qpos[2, OBJECT] = 700.0
        return evaluate(env, actions)

    monkeypatch.setattr(MultiAgentEnv, "_step", thrown)
    push = (
        "--set",
        f"task.gait={gait}",
        "--num_env_steps",
        "640",
        "--out",
        str(run),
        "--device",
        "cpu",
    )
    return train.main([*TINY, *push, *words])


def test_a_run_names_the_cause(gait, tmp_path, monkeypatch, capsys) -> None:
    assert broken_run(gait, tmp_path / "run", monkeypatch) == 1
    said = capsys.readouterr()
    assert "; world 2: object: x [m] was 700, not -13 to 13." in said.out
    assert "(world 2: object: x [m] was 700, not -13 to 13)" in said.err
    assert "learning_rate" not in said.err
