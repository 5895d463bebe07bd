"""PettingZoo's own checkers, and further checks."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest

import mapush
from mqe.config import ConfigError
from tests.support.client_episodes import (
    SEED,
    Actions,
    Case,
    Played,
    check_decisions,
    play_reference,
)

pytest.importorskip("pettingzoo")

SETTINGS = {"sim.device": "cpu", "sim.num_threads": 1, "task.episode_length_s": 0.3}


def make(**options):
    return mapush.make("go1push_mid", client="pettingzoo", settings=SETTINGS, **options)


@pytest.fixture(scope="module")
def env():
    env = make(render_mode="rgb_array")
    yield env
    env.close()


@pytest.mark.filterwarnings("error")
def test_pettingzoos_checkers_do_not_raise(env, capsys) -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    parallel_api_test(env, num_cycles=10)
    parallel_seed_test(make, num_cycles=10)


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda env: pickle.loads(pickle.dumps(env)),
        lambda env: pickle.loads(cloudpickle.dumps(env)),
    ],
)
def test_a_copy_begins_where_its_original_began(copied) -> None:
    env = make(seed=7)
    first, _ = env.reset()
    env.step({name: np.ones(3) for name in env.agents})
    again = copied(env)
    with pytest.raises(RuntimeError, match="reset"):
        again.step({name: np.ones(3) for name in env.agents})
    start, _ = again.reset()
    assert all((start[name] == first[name]).all() for name in first)
    first, _ = env.reset(seed=8)
    start, _ = copied(env).reset()
    assert all((start[name] == first[name]).all() for name in first)


def test_a_picture_is_drawn(env) -> None:
    env.reset()
    picture = env.render()
    assert (picture.shape, picture.dtype) == ((540, 960, 3), np.uint8)
    assert picture.std() > 10.0


def test_actions_are_those_of_present_agents(env) -> None:
    env.reset()
    with pytest.raises(ValueError, match="agent_1 has none"):
        env.step({"agent_0": np.zeros(3)})
    with pytest.raises(ValueError, match=r"agent_1 must have the shape \(3,\), not \(1,\)"):
        env.step({"agent_0": np.zeros(3), "agent_1": np.zeros(1)})
    while env.agents:
        env.step({name: np.zeros(3) for name in env.agents})
    with pytest.raises(RuntimeError, match=r"the episode is over; call reset\(\)"):
        env.step({})


def test_a_broken_world_is_a_truncation_with_a_mark(env) -> None:
    env.reset()
    env.client.env.sim.data.qpos[0, 0] = np.nan
    obs, rewards, terminated, truncated, infos = env.step(
        {name: np.zeros(3) for name in env.agents}
    )
    assert truncated == {"agent_0": True, "agent_1": True}
    assert not any(terminated.values())
    assert infos["agent_0"]["broken"]
    assert np.isfinite(obs["agent_0"]).all()
    assert np.isfinite(list(rewards.values())).all()


def test_a_reset_amid_an_episode_begins_the_next(env) -> None:
    first, _ = env.reset(seed=3)
    env.step({name: np.ones(3) for name in env.agents})
    second, _ = env.reset()
    assert not np.array_equal(first["agent_0"], second["agent_0"])
    np.testing.assert_array_equal(env.reset(seed=3)[0]["agent_0"], first["agent_0"])


def test_the_task_has_a_module_by_pettingzoos_names() -> None:
    from mapush import push_v0  # pyright: ignore[reportAttributeAccessIssue]

    env = push_v0.parallel_env(settings=SETTINGS)
    assert env.metadata["name"] == "go1push_mid"
    env.close()
    turns = push_v0.env(settings=SETTINGS)
    turns.reset(seed=1)
    assert turns.agent_selection == "agent_0"
    turns.close()


def play_pettingzoo(env: Any, actions: Actions, played: Played) -> None:
    env.reset(seed=SEED)
    for t, action in enumerate(actions):
        obs, rewards, terminated, truncated, _ = env.step(
            dict(zip(env.possible_agents, action[0], strict=True))
        )
        played.rewards[t, 0] = list(rewards.values())
        played.terminated[t, 0] = list(terminated.values())
        played.truncated[t, 0] = any(truncated.values())
        if not env.agents:
            played.last_obs[t, 0] = list(obs.values())
            env.reset()


def test_decisions_are_those_of_our_own_environment() -> None:
    case = Case(play_pettingzoo, num_envs=1)
    check_decisions("pettingzoo", case, *play_reference(case))


def test_a_reset_after_a_reset_draws_another_start(env) -> None:
    starts = [np.stack([*env.reset()[0].values()]).tobytes() for _ in range(4)]
    assert len(set(starts)) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 2}, "num_envs: PettingZoo's contract has one world"),
        ({"render_mode": "human"}, "render_mode: unknown mode 'human'"),
        ({"group": "all"}, "group: pettingzoo has no such option"),
    ],
)
def test_a_mistake_in_an_option_is_an_error(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_without_the_library_the_error_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "mapush.extensions.pettingzoo.pettingzoo_env", raising=False)
    with pytest.raises(ConfigError, match=r"pip install '\.\[pettingzoo\]'"):
        make()
