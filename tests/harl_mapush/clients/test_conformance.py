"""Every client goes through the same episodes: 32 seeded decisions give the same rewards,
terminations, truncations and last observations as our own environment, to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mapush
from harl_mapush.clients.entries import CLIENTS
from mqe.registry import TASKS
from tests.support.client_episodes import (
    Actions,
    Case,
    Played,
    check_decisions,
    make,
    play_ours,
    play_reference,
)
from tests.support.registries import restored_registries
from tests.support.strolling import STROLL


def play_harl(env: Any, actions: Actions, played: Played) -> None:
    env.reset()
    for t, action in enumerate(actions):
        _, _, rewards, dones, infos, _ = env.step(action)
        played.rewards[t] = rewards[..., 0]
        for i in np.flatnonzero(dones.all(axis=1)):
            played.truncated[t, i] = infos[i][0]["bad_transition"]
            played.last_obs[t, i] = infos[i][0]["original_obs"]
        played.terminated[t] = dones & ~played.truncated[t, :, np.newaxis]


def play_gymnasium(env: Any, actions: Actions, played: Played) -> None:
    env.reset()
    for t, action in enumerate(actions):
        obs, rewards, terminated, truncated, infos = env.step(action[:, 0])
        played.rewards[t, :, 0] = rewards
        played.terminated[t, :, 0] = terminated
        played.truncated[t] = truncated
        is_done = terminated | truncated
        if not is_done.any():
            continue
        assert infos["_final_obs"].tolist() == is_done.tolist()
        played.last_obs[t, is_done, 0] = np.stack(infos["final_obs"][is_done])


class Toy:
    """A client of the test's own."""

    def __init__(self, worlds: Any) -> None:
        self.env = worlds.build()


CASES = {
    "harl": [Case(play_harl, options=(("team_reward", "own"),))],
    "gymnasium": [Case(play_gymnasium, "walking")],
    "toy": [Case(lambda client, actions, played: play_ours(client.env, actions, played))],
}


@pytest.fixture(scope="module", autouse=True)
def toy():
    with restored_registries():
        mapush.register_client("toy", Toy)
        TASKS.register("walking", STROLL)
        yield


@pytest.fixture(scope="module")
def expected():
    """Return our own environment's results, played once for each kind of worlds."""
    cached: dict[Any, tuple[Actions, Played]] = {}

    def play(case: Case) -> tuple[Actions, Played]:
        key = (case.task, case.num_envs)
        if key not in cached:
            cached[key] = play_reference(case)
        return cached[key]

    return play


def test_every_client_has_a_case() -> None:
    modules = {
        name: getattr(client, "target", client.__module__) for name, client in CLIENTS.items()
    }
    ours = {name for name in modules if not modules[name].startswith("mapush.extensions.")}
    assert set(CASES) == ours


@pytest.mark.parametrize(
    ("client", "case"), [(client, case) for client, cases in CASES.items() for case in cases]
)
def test_a_client_gives_the_same_decisions_as_our_own_environment(client, case, expected) -> None:
    if client not in ("harl", "toy"):
        pytest.importorskip(client)
    check_decisions(client, case, *expected(case))


@pytest.mark.parametrize("client", ["harl", "gymnasium"])
def test_a_reset_after_a_reset_draws_another_start(client: str) -> None:
    case = CASES[client][0]
    env = make(case.task, case.num_envs, client, **dict(case.options))
    starts = [np.asarray(env.reset()[0]) for _ in range(4)]
    assert len({start.tobytes() for start in starts}) == 4
    env.close()


def test_episodes_of_the_comparison_end_by_the_task_and_by_the_clock(expected) -> None:
    _, reference = expected(Case(play_ours))
    assert reference.terminated.any()
    assert reference.truncated.any()
