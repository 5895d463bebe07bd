"""OpenRL's client goes through the same episodes as our own environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.harl_mapush.clients.test_conformance import (
    Actions,
    Case,
    Played,
    check_decisions,
    make,
    play_reference,
)


def play_openrl(env: Any, actions: Actions, played: Played) -> None:
    env.reset()
    for t, action in enumerate(actions):
        # OpenRL's actions count half.
        _, rewards, dones, infos = env.step(2.0 * action)
        played.rewards[t] = rewards[..., 0]
        for i in np.flatnonzero(dones.all(axis=1)):
            played.truncated[t, i] = "bad_transition" in infos[i]
            played.last_obs[t, i] = infos[i]["final_obs"]
        played.terminated[t] = dones & ~played.truncated[t, :, np.newaxis]


CASE = Case(play_openrl, options=(("staggered", False),))


def test_the_client_gives_the_same_decisions_as_our_own_environment() -> None:
    check_decisions("openrl", CASE, *play_reference(CASE))


def test_a_reset_after_a_reset_draws_another_start() -> None:
    env = make(CASE.task, CASE.num_envs, "openrl", **dict(CASE.options))
    starts = [np.asarray(env.reset()) for _ in range(4)]
    assert len({start.tobytes() for start in starts}) == 4
    env.close()
