"""The small run of the self-check: its worlds, its learner and the findings of the stages."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch

from harl_mapush.algorithms.algorithm import Algorithm
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.config import RunCfg
from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.memory_plan import MemoryPlan
from harl_mapush.runner import Runner
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env
from mqe.world.randomization import RandomizationCfg

NUM_DECISIONS = 4


@dataclass
class Checkup:
    """The small run of a self-check: each stage adds parts that the next ones use."""

    cfg: RunCfg
    is_launched_singly: bool = False  # GPU kernels one by one instead of CUDA graphs
    preset: str = ""  # the name of the preset of cfg
    num_ranks: int = 1  # they share the run's worlds
    sim_name: str = ""
    device: torch.device = torch.device("cpu")
    versions: dict[str, str | None] = field(default_factory=dict)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    plan: MemoryPlan | None = None
    ranks: dict[str, Any] | None = None  # findings of the stage "ranks"
    env: MultiAgentEnv | None = None
    runner: Runner | None = None

    def place(self, device: str) -> None:
        """Set the device of the run."""
        self.cfg = dataclasses.replace(
            self.cfg, sim=dataclasses.replace(self.cfg.sim, device=device)
        )

    def build(self, num_envs: int, ranks: Ranks = ALONE) -> None:
        """Build the run's learner and ``num_envs`` of its worlds; close the previous ones."""
        self.close()
        env_cfg = dataclasses.replace(self.cfg.env, num_envs=num_envs, randomize=RandomizationCfg())
        env = make_env(
            env_cfg, self.cfg.sim, self.cfg.task, self.cfg.runner.seed, ranks.share(num_envs)
        )
        self.env = env
        if self.is_launched_singly:
            env.use_graphs = False
        network = self.cfg.network
        chunk = network.chunk_length if network.use_recurrent_policy else 0
        runner_cfg = dataclasses.replace(self.cfg.runner, num_steps=chunk or NUM_DECISIONS)
        self.runner = Runner(env, self.make_learner(ranks), runner_cfg, ranks=ranks)

    def make_learner(self, ranks: Ranks = ALONE) -> Algorithm:
        """Build a learner with settings for the few decisions of the existing worlds."""
        cfg = self.cfg
        assert self.env is not None
        decisions = 1 if cfg.network.use_recurrent_policy else NUM_DECISIONS
        rows = self.env.num_envs * decisions
        settings = cfg.algorithm.for_trial(rows)
        spec = self.env.spec
        return make_algorithm(settings, cfg.network, spec, self.env.device, cfg.runner.seed, ranks)

    def close(self) -> None:
        """Free everything that the stages built."""
        if self.env is not None:
            self.env.close()
        self.env = None
        self.runner = None
