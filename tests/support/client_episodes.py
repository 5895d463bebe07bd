"""Seeded decisions in our own environment and through a client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import mapush

NUM_STEPS = 32
SEED = 7
PUSH = {
    "task.decision_period": 1,
    "task.episode_length_s": 0.3,
    # Many episodes end by a robot's tilt, the others by the clock.
    "task.pitch_limit": 0.05,
}
WALKING = {"env.num_agents": 1, "task.episode_length_s": 0.3}


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


@dataclass
class Case:
    """How a client is built and played."""

    play: Play
    task: str = "go1push_mid"
    num_envs: int = 2
    options: tuple[tuple[str, Any], ...] = ()


def make(task: str, num_envs: int, client: str | None = None, **options: Any) -> Any:
    settings = {"sim.device": "cpu", "sim.num_threads": 1}
    settings |= PUSH if task == "go1push_mid" else WALKING
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


def check_decisions(client: str, case: Case, actions: Actions, reference: Played) -> None:
    """Play ``actions`` through a client, and compare the results with ``reference``."""
    env = make(case.task, case.num_envs, client, **dict(case.options))
    played = Played(*reference.rewards.shape[1:], reference.last_obs.shape[-1])
    case.play(env, actions, played)
    played.assert_equals(reference)
