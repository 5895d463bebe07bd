"""Base class for watchers: observers during every world's first episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mqe.env.environment import MultiAgentEnv
from mqe.env.observer import Observer
from mqe.tasks.episode_report import Metrics


class Goal(NamedTuple):
    """The pose to which an object is pushed."""

    radius: float = 0.0  # [m]
    # Returns the turn (N,) [rad] to the heading at the goal, for the object's yaw (N,). None: the
    # task accepts any heading.
    heading_error: Callable[[Tensor], Tensor] | None = None


class EpisodeWatcher(Observer, ABC):
    """An observer of episodes. It measures, summarizes and formats."""

    senses_parts = False  # needs the forces of the robots' parts
    metric = ""  # one of its metrics, in every summary of it

    def __init__(self, num_envs: int, device: torch.device) -> None:
        """Begin with no world finished."""
        self._is_finished = torch.zeros(num_envs, dtype=torch.bool, device=device)

    @classmethod
    def supports(cls, env: MultiAgentEnv) -> bool:
        """Return whether the watcher can measure worlds of this kind."""
        return True

    @classmethod
    def build(cls, env: MultiAgentEnv, goal: Goal) -> EpisodeWatcher:
        """Build a registered watcher from its class."""
        return cls(env, goal)  # type: ignore[arg-type]

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

    @staticmethod
    def describe(metrics: Metrics) -> str:
        """Format the watcher's metrics, one a line."""
        return ""


def format_rows(rows: Iterable[tuple[str, str]]) -> str:
    """Format labels and values, one pair a line."""
    return "".join(f"{label:<40}{value}\n" for label, value in rows)


def format_value(metrics: Metrics, name: str, unit: str = "") -> str:
    """Format a metric with three decimals. None is a dash."""
    value = metrics[name]
    return "-" if value is None else f"{value:.3f}{unit}"


def format_rate(metrics: Metrics, name: str) -> str:
    """Format the rate ``<name>_rate`` with its 95 % confidence interval."""
    low, high = metrics[f"{name}_ci95"]  # type: ignore[misc]
    return f"{format_value(metrics, f'{name}_rate')} ({low:.3f} to {high:.3f})"
