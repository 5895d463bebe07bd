"""The worlds of other processes, as the learner's process knows them: their sizes and their
statistics.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from harl_mapush.algorithms.algorithm import Algorithm, Decision
from harl_mapush.algorithms.team import TeamSpec
from harl_mapush.collectors.collector import BlockReport
from harl_mapush.config import RunCfg
from mqe.registry import TASKS, SimCfg, make_env
from mqe.world.randomization import RandomizationCfg
from mqe.world.streams import Streams


class RemoteEnvSpec:
    """All worlds of a run with collectors. Nothing is ever stepped here: one world is built to
    read sizes off.
    """

    def __init__(self, cfg: RunCfg, device: torch.device) -> None:
        """Read sizes off a world of ``cfg``; the learner is on ``device``."""
        calm = dataclasses.replace(cfg.env, num_envs=1, randomize=RandomizationCfg())
        one = make_env(calm, SimCfg(name="mujoco", device="cpu", num_threads=1), cfg.task, 0)
        self.spec = TeamSpec.of(one)
        self.num_agents = one.num_agents
        self.report = one.report
        self.decision_period = one.decision_period
        self.num_envs = cfg.env.num_envs
        self.device = device
        self.task = one.task
        self._statistics = one.statistics()
        one.close()
        if device.type != "cpu":
            task = TASKS[cfg.task.name].make(cfg.task, calm, device, Streams(0, 1, device)).task
            self.spec = self.spec._replace(mirror=task.mirror, planar=task.planar)

    def grow_buffers(self) -> None:
        """Do nothing: collectors do it themselves, and report it with a block."""

    def take_statistics(self, statistics: dict[str, float]) -> None:
        """Set the statistics to those that the collectors reported last."""
        self._statistics = statistics

    def statistics(self) -> dict[str, float]:
        """Return what the collectors reported last."""
        return self._statistics

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def merge_statistics(reports: Iterable[BlockReport]) -> dict[str, float]:
    """Return means over the episodes of all collectors; each collector counts by its number of
    episodes.
    """
    parts = [report.statistics for report in reports if report.statistics.get("num_episodes", 0)]
    merged: dict[str, float] = {"num_episodes": sum(part["num_episodes"] for part in parts)}
    for name in dict.fromkeys(name for part in parts for name in part if name != "num_episodes"):
        known = [
            (part[name], part["num_episodes"])
            for part in parts
            if math.isfinite(part.get(name, math.nan))
        ]
        weight = sum(number for _, number in known)
        if weight:
            merged[name] = sum(value * number for value, number in known) / weight
        else:
            merged[name] = math.nan
    return merged


class ActingOn:
    """A team on one device that acts for worlds on another."""

    def __init__(self, algorithm: Algorithm, device: torch.device) -> None:
        """Act on ``device``, the algorithm's."""
        self._algorithm = algorithm
        self._device = device

    def act(
        self, obs: Tensor, hidden: Tensor | None = None, *, deterministic: bool = False
    ) -> Decision:
        """Decide; actions are on the device of ``obs``."""
        decision = self._algorithm.act(obs.to(self._device), hidden, deterministic=deterministic)
        return decision._replace(actions=decision.actions.to(obs.device))
