"""The collectors' worlds in the learner's process: their sizes and their first statistics."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from harl_mapush.collectors.collector import BlockReport
from harl_mapush.config import RunCfg
from mqe.env.statistics import weighted_means
from mqe.registry import TASKS, SimCfg, make_env
from mqe.world.randomization import RandomizationCfg
from mqe.world.streams import Streams


class RemoteEnvSpec:
    """The worlds of a run with collectors. One world, never stepped, gives their sizes."""

    def __init__(self, cfg: RunCfg, device: torch.device) -> None:
        """Read the sizes from a world of ``cfg``. The learner is on ``device``."""
        env_cfg = dataclasses.replace(cfg.env, num_envs=1, randomize=RandomizationCfg())
        one = make_env(env_cfg, SimCfg(name="mujoco", device="cpu", num_threads=1), cfg.task, 0)
        self.spec = one.spec
        self.num_agents = one.num_agents
        self.report = one.report
        self.decision_period = one.decision_period
        self.num_envs = cfg.env.num_envs
        self.device = device
        self.task = one.task
        self.statistics = one.statistics()  # before the first episode
        one.close()
        if device.type != "cpu":
            task = TASKS[cfg.task.name].make(cfg.task, env_cfg, device, Streams(0, 1, device)).task
            self.spec = self.spec._replace(symmetries=task.spec.symmetries)

    def record_broken_worlds(self) -> None:
        """Return None: the worlds are in other processes."""


def merge_statistics(reports: Iterable[BlockReport]) -> dict[str, float]:
    """Return the collectors' mean statistics, weighted by their numbers of episodes."""
    parts = [report.statistics for report in reports if report.statistics.get("num_episodes", 0)]
    return weighted_means(parts)
