"""The collectors' worlds in the learner's process: their sizes."""

import dataclasses

import torch

from harl_mapush.config import RunCfg
from mqe.registry import TASKS
from mqe.world.streams import Streams


class RemoteEnvSpec:
    """The worlds of a run with collectors. The task of one world gives their sizes."""

    def __init__(self, cfg: RunCfg, device: torch.device) -> None:
        """Read the sizes from the task of ``cfg``. The learner is on ``device``."""
        entry = TASKS[cfg.task.name]
        env_cfg = dataclasses.replace(cfg.env, num_envs=1)
        self.task = entry.make(cfg.task, env_cfg, device, Streams(0, 1, device)).task
        self.spec = self.task.spec
        self.num_agents = self.spec.num_agents
        self.report = entry.report
        self.decision_period = self.task.decision_period
        self.num_envs = cfg.env.num_envs
        self.device = device
