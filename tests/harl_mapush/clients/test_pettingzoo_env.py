"""PettingZoo's own checkers, and further checks."""

from __future__ import annotations

import copy
import pickle

import cloudpickle
import numpy as np
import pytest

import mapush

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
def test_pettingzoos_checkers_pass(env, capsys) -> None:
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
    from mapush import push_v0

    env = push_v0.parallel_env(settings=SETTINGS)
    assert env.metadata["name"] == "go1push_mid"
    env.close()
    turns = push_v0.env(settings=SETTINGS)
    turns.reset(seed=1)
    assert turns.agent_selection == "agent_0"
    turns.close()
