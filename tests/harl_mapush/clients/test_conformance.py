"""Every client goes through the same episodes: 60 seeded decisions give the same rewards,
terminations, truncations and last observations as our own environment, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import mapush
from harl_mapush.clients.entries import CLIENTS
from tests.support.registries import restored_registries

NUM_STEPS = 60
SEED = 7
PUSH = {
    "task.decision_period": 1,
    "task.episode_length_s": 0.3,
    # Many episodes end by a robot's tilt, the others by the clock.
    "task.pitch_limit": 0.05,
}
VELOCITY = {"task.episode_length_s": 0.3}


class Played:
    """The results of ``NUM_STEPS`` decisions."""

    def __init__(self, num_envs: int, num_agents: int, obs_size: int) -> None:
        shape = (NUM_STEPS, num_envs, num_agents)
        self.rewards = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, bool)
        self.truncated = np.zeros(shape[:2], bool)
        self.last_obs = np.zeros((*shape, obs_size), np.float32)  # where an episode ended

    def assert_equals(self, other: Played) -> None:
        for name, values in vars(self).items():
            np.testing.assert_array_equal(values, vars(other)[name], err_msg=name)


Actions = NDArray[np.float32]  # (NUM_STEPS, N, A, U)
Play = Callable[[Any, Actions, Played], None]


def play_ours(env: Any, actions: Actions, played: Played) -> None:
    env.reset()
    for t, action in enumerate(actions):
        step = env.step(torch.from_numpy(action))
        played.rewards[t] = step.reward
        played.terminated[t] = step.terminated
        played.truncated[t] = step.was_cut_off
        is_done = step.done.numpy()
        played.last_obs[t, is_done] = step.final_obs[step.done]


def play_harl(env: Any, actions: Actions, played: Played) -> None:
    env.reset()
    for t, action in enumerate(actions):
        _, _, rewards, dones, infos, _ = env.step(action)
        played.rewards[t] = rewards[..., 0]
        for i in np.flatnonzero(dones.all(axis=1)):
            played.truncated[t, i] = infos[i][0]["bad_transition"]
            played.last_obs[t, i] = infos[i][0]["original_obs"]
        played.terminated[t] = dones & ~played.truncated[t, :, np.newaxis]


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


def play_torchrl(env: Any, actions: Actions, played: Played) -> None:
    left = iter(actions)

    def act(tensordict: Any) -> Any:
        return tensordict.set(("agents", "action"), torch.from_numpy(next(left)))

    rollout = env.rollout(NUM_STEPS, act, break_when_any_done=False).transpose(0, 1)["next"]
    played.rewards[:] = rollout["agents", "reward"][..., 0]
    played.terminated[:] = rollout["terminated"]
    played.truncated[:] = rollout["truncated"][..., 0]
    is_done = rollout["done"][..., 0]
    played.last_obs[is_done] = rollout["agents", "observation"][is_done]


@dataclass
class Case:
    """How a client is built and played."""

    play: Play
    task: str = "go1push_mid"
    num_envs: int = 2
    options: tuple[tuple[str, Any], ...] = ()


class Toy:
    """A client of the test's own."""

    def __init__(self, worlds: Any) -> None:
        self.env = worlds.build()


CASES = {
    "harl": [Case(play_harl, options=(("team_reward", "own"),))],
    "pettingzoo": [Case(play_pettingzoo, num_envs=1)],
    "gymnasium": [Case(play_gymnasium, "go1_velocity")],
    "torchrl": [Case(play_torchrl)],
    "toy": [Case(lambda client, actions, played: play_ours(client.env, actions, played))],
}


@pytest.fixture(scope="module", autouse=True)
def toy():
    with restored_registries():
        mapush.register_client("toy", Toy)
        yield


def make(task: str, num_envs: int, client: str | None = None, **options: Any) -> Any:
    settings = {"sim.device": "cpu", "sim.num_threads": 1}
    settings |= PUSH if task == "go1push_mid" else VELOCITY
    return mapush.make(
        task, client=client, num_envs=num_envs, seed=SEED, settings=settings, **options
    )


def play_reference(case: Case) -> tuple[Actions, Played]:
    """Play random actions in our own environment."""
    env = make(case.task, case.num_envs)
    spec = env.spec
    shape = (NUM_STEPS, case.num_envs, spec.num_agents, spec.action_size)
    actions = np.random.default_rng(0).uniform(-1.2, 1.2, shape).astype(np.float32)
    played = Played(case.num_envs, spec.num_agents, spec.obs_size)
    play_ours(env, actions, played)
    env.close()
    return actions, played


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
    modules = {name: client.__module__ for name, client in CLIENTS.items()}
    ours = {name for name in modules if not modules[name].startswith("mapush.extensions.")}
    assert set(CASES) == ours


@pytest.mark.parametrize(
    ("client", "case"), [(client, case) for client, cases in CASES.items() for case in cases]
)
def test_a_client_gives_the_same_decisions_as_our_own_environment(client, case, expected) -> None:
    if client not in ("harl", "toy"):
        pytest.importorskip(client)
    check_decisions(client, case, *expected(case))


def check_decisions(client: str, case: Case, actions: Actions, reference: Played) -> None:
    """Play ``actions`` through a client, and compare the results with ``reference``."""
    env = make(case.task, case.num_envs, client, **dict(case.options))
    played = Played(*reference.rewards.shape[1:], reference.last_obs.shape[-1])
    case.play(env, actions, played)
    played.assert_equals(reference)


def first_obs(client: str, env: Any) -> Any:
    """Reset all worlds and return their first observations."""
    start = env.reset()
    if client == "torchrl":
        return start["agents", "observation"].numpy()
    return np.stack([*start[0].values()]) if client == "pettingzoo" else np.asarray(start[0])


@pytest.mark.parametrize("client", ["harl", "pettingzoo", "gymnasium", "torchrl"])
def test_a_reset_after_a_reset_draws_another_start(client: str) -> None:
    case = CASES[client][0]
    env = make(case.task, case.num_envs, client, **dict(case.options))
    starts = [first_obs(client, env) for _ in range(4)]
    assert len({start.tobytes() for start in starts}) == 4
    env.close()


def test_episodes_of_the_comparison_end_by_the_task_and_by_the_clock(expected) -> None:
    _, reference = expected(Case(play_ours))
    assert reference.terminated.any()
    assert reference.truncated.any()
