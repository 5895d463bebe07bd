"""A run's progress, and one iteration's report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from harl_mapush.run_settings import RunnerCfg


class IterationReport(NamedTuple):
    """Times and metrics of one iteration."""

    iteration: int  # number of completed iterations
    num_iterations: int
    env_steps: int  # since the start of the run
    num_env_steps: int
    collect_s: float
    update_s: float
    metrics: dict[str, float]  # agent{i}/..., critic/..., reward/<term> per env step
    note: str | None = None  # a message about grown buffers or broken worlds
    # Lines about a run's collecting processes.
    health: tuple[str, ...] = ()


@dataclass
class Progress:
    """A run's position: iterations done and planned, and their env steps."""

    num_transitions: int  # decisions of all worlds in one iteration
    steps_per_iteration: int  # env steps
    num_iterations: int
    checkpoint_interval: int  # env steps
    iteration: int = 0

    @classmethod
    def of(cls, cfg: RunnerCfg, num_envs: int, decision_period: int) -> Progress:
        """Return a new run's progress. ``num_envs`` counts all ranks' worlds."""
        num_transitions = cfg.num_steps * num_envs
        steps_per_iteration = num_transitions * decision_period
        num_iterations = max(1, math.ceil(cfg.num_env_steps / steps_per_iteration))
        return cls(num_transitions, steps_per_iteration, num_iterations, cfg.checkpoint_interval)

    @property
    def env_steps(self) -> int:
        """Control steps done, summed over environments."""
        return self.iteration * self.steps_per_iteration

    @property
    def num_env_steps(self) -> int:
        """Control steps in the whole run."""
        return self.num_iterations * self.steps_per_iteration

    @property
    def share(self) -> float:
        """Completed fraction of the iterations, in [0, 1]."""
        return self.iteration / self.num_iterations

    @property
    def is_done(self) -> bool:
        """Whether the last iteration is done."""
        return self.iteration >= self.num_iterations

    def is_checkpoint_due(self) -> bool:
        """Return whether a checkpoint follows the last iteration.

        A checkpoint follows an iteration past a multiple of ``checkpoint_interval``, and the run's
        last iteration.
        """
        interval = self.checkpoint_interval
        before = self.env_steps - self.steps_per_iteration
        return self.is_done or self.env_steps // interval > before // interval
