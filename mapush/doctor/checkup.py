"""The self-check's small worlds, and findings for later stages."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch

from harl_mapush.config import RunCfg
from harl_mapush.memory_plan import MemoryPlan
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env
from mqe.world.randomization import RandomizationCfg

TOGETHER_S = 30.0  # default duration of a training with collectors


@dataclass
class Checkup:
    """The settings of a self-check, and findings for later stages."""

    cfg: RunCfg
    is_launched_singly: bool = False  # GPU kernels one by one instead of CUDA graphs
    num_ranks: int = 1  # they share the run's worlds
    num_collectors: int = 0
    together_s: float = TOGETHER_S  # duration of a training with collectors
    sim_name: str = ""
    device: torch.device = torch.device("cpu")
    versions: dict[str, str | None] = field(default_factory=dict)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    plan: MemoryPlan | None = None
    env: MultiAgentEnv | None = None

    def build(self, num_envs: int) -> MultiAgentEnv:
        """Build ``num_envs`` of the run's worlds. Close the previous ones."""
        self.close()
        cfg = self.cfg
        env_cfg = dataclasses.replace(cfg.env, num_envs=num_envs, randomize=RandomizationCfg())
        self.env = make_env(env_cfg, cfg.sim, cfg.task, cfg.runner.seed)
        if self.is_launched_singly:
            self.env.use_graphs = False
        return self.env

    def close(self) -> None:
        """Free the worlds."""
        if self.env is not None:
            self.env.close()
        self.env = None
