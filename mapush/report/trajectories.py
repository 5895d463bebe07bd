"""Objects' paths in a trained team's first episodes, for a view from above."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harl_mapush.evaluation.calculator import first_episodes
from harl_mapush.evaluation.policies import load_policy
from harl_mapush.evaluation.watchers.watcher import EpisodeWatcher
from harl_mapush.process import seed_everything
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env
from mqe.viewer.recording import outcome
from mqe.world.state import SceneState


@dataclass(frozen=True)
class Trajectory:
    """One episode: the object's path (T, 2) [m], the goal (2,) [m], outcome and duration."""

    path: NDArray[np.float64]
    goal: NDArray[np.float64]
    outcome: str
    seconds: float


@dataclass(frozen=True)
class Played:
    """A team's episodes, and their metrics as text."""

    trajectories: list[Trajectory]
    metrics: str
    success_radius: float | None = None  # [m] of the goal's disc; None: the task has none


class PathWatcher(EpisodeWatcher):
    """Records the object's path in every world until its first episode ends."""

    def __init__(self, env: MultiAgentEnv) -> None:
        super().__init__(env.num_envs, env.device)
        self._env = env
        self._num_points = torch.zeros(env.num_envs, dtype=torch.int64)
        self._paths: list[Tensor] = []
        self._goals = torch.empty(0)

    def on_reset(self, state: SceneState) -> None:
        """Begin with the positions of object and goal."""
        self._goals = state.goal_pos[:, :2].clone()
        self._paths.append(state.object_pos[:, :2].clone())

    def finish(self, is_finished: Tensor) -> None:
        """Add a decision's points in worlds with an unfinished first episode."""
        self._num_points[~self._is_finished.cpu()] += 1
        self._paths.append(self._env.state.object_pos[:, :2].clone())
        super().finish(is_finished)

    def episodes(self) -> dict[str, Tensor]:
        """Return no measurements."""
        return {}

    def trajectories(self, outcomes: Sequence[str]) -> list[Trajectory]:
        """Return every world's first episode, with its outcome from ``outcomes``."""
        recorded = torch.stack(self._paths).cpu().double().numpy()
        goals = self._goals.cpu().double().numpy()
        period = self._env.decision_period * self._env.step_dt
        ends = self._num_points.tolist()
        return [
            # After its last decision a world is in its next episode.
            Trajectory(recorded[:end, world], goals[world], outcome, end * period)
            for world, (end, outcome) in enumerate(zip(ends, outcomes, strict=True))
        ]


def play(run: Path, num_episodes: int) -> Played | None:
    """Play a run's last checkpoint in its training worlds, without randomization.

    Return None for a task without an object.
    """
    folder = checkpoint.resolve(str(run))
    seed = {"runner": {"seed": 0}}
    cfg = evaluation_worlds.settings(folder, seed, num_envs=num_episodes, with_suite=False)
    seed_everything(cfg.runner.seed)
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    try:
        if env.scene.object is None:
            return None
        watcher = PathWatcher(env)
        episodes = first_episodes(env, load_policy(folder, cfg, env), watchers=[watcher])
        limit_s = env.max_episode_length * env.step_dt
        metrics = env.report.summarize(episodes, limit_s, env.step_dt)
        return Played(
            watcher.trajectories(_outcomes(env, episodes)),
            env.report.describe(metrics),
            getattr(cfg.task, "success_radius", None),
        )
    finally:
        env.close()


def _outcomes(env: MultiAgentEnv, episodes: Mapping[str, Tensor]) -> list[str]:
    """Return the first episode's outcome in every world."""
    happened = {words: episodes[name] > 0.5 for name, words in env.report.outcomes.items()}
    return [
        outcome(
            [words for words, worlds in happened.items() if bool(worlds[world])],
            not bool(episodes["broken"][world]),
        )
        for world in range(env.num_envs)
    ]
