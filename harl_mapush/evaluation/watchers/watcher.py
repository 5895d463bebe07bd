"""Base class for watchers: observers during every world's first episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from mqe.env.environment import MultiAgentEnv
from mqe.env.observer import Observer
from mqe.tasks.episode_report import Metrics, with_interval


class Goal(NamedTuple):
    """The pose to which an object is pushed."""

    radius: float = 0.0  # [m]
    # Returns the turn (N,) [rad] to the heading at the goal, for the object's yaw (N,). None: the
    # task accepts any heading.
    heading_error: Callable[[Tensor], Tensor] | None = None


class EpisodeWatcher(Observer, ABC):
    """An observer of episodes. It measures and summarizes."""

    senses_parts = False  # needs the forces of the robots' parts
    # Lines of text: a label and the names of its metrics. Lines of missing metrics are left out.
    lines: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = ()

    def __init__(self, env: MultiAgentEnv, goal: Goal) -> None:
        """Watch ``env`` with no world finished. ``goal`` is its task's."""
        self._is_finished = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)

    @classmethod
    def supports(cls, env: MultiAgentEnv) -> bool:
        """Return whether the watcher can measure worlds of this kind."""
        return True

    def finish(self, is_finished: Tensor) -> None:
        """Exclude the worlds of ``is_finished`` (N,) from further measurements."""
        self._is_finished = is_finished.clone()

    def counting(self, live: Tensor) -> Tensor:
        """Return a mask (N,) of the ``live`` worlds in their first episode."""
        return live & ~self._is_finished

    @abstractmethod
    def episodes(self) -> dict[str, Tensor]:
        """Return the measurements (N,) by name."""

    @staticmethod
    def summarize(episodes: Mapping[str, Tensor]) -> Metrics:
        """Return metrics of N episodes from ``episodes`` and the bools ``broken`` (N,)."""
        return {}

    @classmethod
    def describe(cls, metrics: Metrics) -> str:
        """Format the watcher's metrics."""
        text = ""
        for label, names in cls.lines:
            if all(name in metrics for name in names):
                values = ", ".join(with_interval(metrics, name) for name in names)
                text += f"{label:<40}{values}\n"
        return text
