"""Every client by its name: the same worlds under other contracts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import mapush
from harl_mapush.clients import HarlEnv, MAPushEnv
from harl_mapush.clients.entries import CLIENTS
from harl_mapush.clients.openrl_env import OpenRLEnv
from mqe.config import ConfigError
from mqe.env.environment import MultiAgentEnv

N = 3
A = 2
SETTINGS = {"sim.device": "cpu", "task.episode_length_s": 3.0}


class Toy:
    """A client of the test's own: one method that steps and returns the rewards."""

    def __init__(self, worlds: Any) -> None:
        self.env = worlds.build()
        self.env.reset()

    def play(self, actions: NDArray[np.float32]) -> NDArray[np.float32]:
        return self.env.step(torch.from_numpy(actions)).reward.numpy().copy()


def play_harl(env: MAPushEnv, actions: list[NDArray[np.float32]]) -> list[Any]:
    env.reset()
    return [env.step(action)[2][..., 0] for action in actions]


def play_openrl(env: OpenRLEnv, actions: list[NDArray[np.float32]]) -> list[Any]:
    env.reset()
    return [env.step(2.0 * action)[1][..., 0] for action in actions]


PLAYED: dict[str, tuple[dict[str, Any], Callable[..., list[Any]]]] = {
    "harl": ({"team_reward": "own"}, play_harl),
    "openrl": ({}, play_openrl),
    "toy": ({}, lambda env, actions: [env.play(action) for action in actions]),
}


@pytest.fixture
def toy():
    mapush.register_client("toy", Toy)
    yield
    del CLIENTS["toy"]


def test_every_client_steps_the_same_worlds(toy) -> None:
    """Rewards of a few decisions are those of our own environment, to the bit."""
    draw = np.random.default_rng(0)
    actions = [draw.uniform(-0.5, 0.5, (N, A, 3)).astype(np.float32) for _ in range(5)]
    ours = mapush.make("go1push_mid", num_envs=N, seed=7, settings=SETTINGS)
    ours.reset()
    expected = [ours.step(torch.from_numpy(action)).reward.numpy().copy() for action in actions]
    assert set(PLAYED) == set(CLIENTS)
    for client, (options, play) in PLAYED.items():
        given = {"num_envs": N, "seed": 7, "settings": SETTINGS}
        env = mapush.make("go1push_mid", client=client, **given, **options)
        for mine, theirs in zip(expected, play(env, actions), strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=client)


def test_without_a_client_it_is_our_own_environment() -> None:
    settings = {"task.object": "tblock", "device": "cpu"}
    env = mapush.make("go1push_mid", num_envs=2, seed=1, settings=settings)
    assert isinstance(env, MultiAgentEnv)
    assert env.settings["task"]["object"] == "tblock"
    assert env.num_envs == 2


def test_harls_environment_has_the_settings_that_were_given() -> None:
    env = mapush.make(
        client="harl", num_envs=2, seed=3, settings={"device": "cpu"}, team_reward="sum"
    )
    assert isinstance(env, HarlEnv)
    assert (env.n_threads, env.team_reward) == (2, "sum")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"client": "petingzoo"}, "client: unknown client 'petingzoo'"),
        ({"client": "hrl"}, "did you mean harl?"),
        ({"task": "go1push"}, "unknown .*go1push.*did you mean go1push_mid"),
        ({"settings": {"task.objct": "tblock"}}, "did you mean task.object"),
        ({"settings": {"objct": "tblock"}}, "did you mean object"),
        ({"num_envs": 2, "settings": {"n_threads": 3}}, "two spellings of one setting"),
        ({"num_envs": 0}, "num_envs: must be at least 1"),
        ({"team_reward": "sum"}, "team_reward: our own environment has no options"),
    ],
)
def test_a_mistake_is_an_error_with_what_to_say_instead(given, message) -> None:
    with pytest.raises(ConfigError, match=message):
        mapush.make(**given)
