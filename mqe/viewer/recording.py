"""Episodes simulated for a film, several worlds at a time, and their drawn states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mqe.env.environment import MultiAgentEnv
from mqe.env.observer import Observer
from mqe.viewer.camera import ShownState
from mqe.world.state import SceneState

# Obs (N, A, O) to actions (N, A, U); it may have ``reset_memory(done)``.
FilmedPolicy = Callable[[Tensor], Tensor]


@dataclass
class Episode:
    """An episode's drawn states, and a text about its outcome."""

    number: int  # from 1, of the film
    states: list[ShownState] = field(default_factory=list)
    outcome: str = ""


@dataclass(frozen=True)
class Round:
    """Episodes side by side.

    Each episode keeps its last picture until all have ended, and then for ``hold_frames`` more.
    """

    episodes: Sequence[Episode | None]  # one a tile
    hold_frames: int  # duration of the last picture

    def __len__(self) -> int:
        return (
            max(len(episode.states) for episode in self.episodes if episode is not None)
            + self.hold_frames
        )


class Recording(Observer):
    """Simulates several worlds' episodes, tile by tile, and keeps their drawn states."""

    def __init__(
        self, env: MultiAgentEnv, stride: int, world: int, num_tiles: int, num_episodes: int
    ) -> None:
        self._env = env
        self._stride = stride
        self._world = world
        self._num_episodes = num_episodes
        self._obs: Tensor | None = None
        self.num_tiles = num_tiles
        self._steps = [0] * num_tiles  # control steps into the episode
        self._episodes: list[list[Episode]] = [[] for _ in range(num_tiles)]
        self._ways: list[NDArray[np.float64] | None] = [None] * num_tiles
        self.time_s = 0.0

    def is_enough(self, most_frames: float) -> bool:
        """Return whether all episodes have ended, or there are pictures for ``most_frames``."""
        running = [tile for tile in range(len(self._steps)) if self._is_running(tile)]
        if self._obs is None or not running:
            return self._obs is not None
        return (
            min(sum(len(episode.states) for episode in self._episodes[tile]) for tile in running)
            >= most_frames
        )

    def step(self, policy: FilmedPolicy) -> None:
        """Take one decision, at first from the initial state of the first episodes."""
        env = self._env
        world = self._world
        tiles = range(len(self._steps))
        if self._obs is None:
            self._obs = env.reset()[0]
            self._plan()
            for tile in tiles:
                self._begin(tile)
        step = env.step(policy(self._obs))
        self._obs = step.obs
        self.time_s += env.decision_period * env.step_dt
        if hasattr(policy, "reset_memory"):  # a plain function remembers nothing
            policy.reset_memory(step.done)  # pyright: ignore[reportFunctionMemberAccess]
        self._plan()
        for tile in tiles:
            if self._is_running(tile) and bool(step.done[world + tile]):
                valid = bool(step.valid[world + tile])
                self._episodes[tile][-1].outcome = outcome_words(env, world + tile, valid)
                self._begin(tile)

    def on_control_step(self, state: SceneState, live: Tensor) -> None:
        """Keep every ``stride``-th state."""
        for tile in range(len(self._steps)):
            self._steps[tile] += 1
            if self._is_running(tile) and self._steps[tile] % self._stride == 0:
                self._keep(tile)

    def rounds(self, hold_frames: int) -> list[Round]:
        """Return the simulated episodes in the film's order."""
        num_rounds = max(len(episodes) for episodes in self._episodes)
        return [
            Round(
                [episodes[k] if k < len(episodes) else None for episodes in self._episodes],
                hold_frames,
            )
            for k in range(num_rounds)
        ]

    def _plan(self) -> None:
        """Request the planned paths of the coming decision, from a task with a planner."""
        planned_way = self._env.task.features.planned_way
        if planned_way is not None:
            for tile in range(len(self._ways)):
                way = planned_way(self._world + tile)
                self._ways[tile] = way.cpu().double().numpy()

    def _is_running(self, tile: int) -> bool:
        episodes = self._episodes[tile]
        return bool(episodes) and not episodes[-1].outcome

    def _begin(self, tile: int) -> None:
        """Begin a tile's next episode, if one is left."""
        number = len(self._episodes[tile]) * len(self._steps) + tile + 1
        if number <= self._num_episodes:
            self._steps[tile] = 0
            self._episodes[tile].append(Episode(number))
            self._keep(tile)

    def _keep(self, tile: int) -> None:
        sim = self._env.sim
        world = self._world + tile
        qpos, mocap_pos = (
            values[world].to("cpu", torch.float64).numpy().copy()
            for values in (sim.data.qpos, sim.data.mocap_pos)
        )
        mocap_quat = None
        if self._env.scene.obstacles:
            mocap_quat = sim.data.mocap_quat[world].to("cpu", torch.float64).numpy().copy()
        state = ShownState(qpos, mocap_pos, mocap_quat, self._ways[tile])
        self._episodes[tile][-1].states.append(state)


def outcome_words(env: MultiAgentEnv, world: int, is_valid: bool) -> str:
    """Return the last episode's outcome in ``world`` in words."""
    happened = [
        words
        for name, words in env.report.outcomes.items()
        if bool(env.episode_metrics[name][world] > 0.5)
    ]
    return outcome(happened, is_valid)


def outcome(happened: Sequence[str], is_valid: bool) -> str:
    """Return a text about an episode's outcome, the first of the true outcomes ``happened``."""
    if not is_valid:
        return "the simulation broke"
    return happened[0] if happened else "time is up"
