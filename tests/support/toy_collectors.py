"""A collector run on the toy worlds in ``toy.py``, with optional collector faults."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harl_mapush import config
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.algorithms.off_policy import OffPolicy
from harl_mapush.collectors import collector_process
from harl_mapush.collectors.async_runner import AsyncRunner
from harl_mapush.collectors.collector import Collector, Identity
from harl_mapush.collectors.collector_settings import settled
from harl_mapush.collectors.launchers import StartWorker, start_worker
from harl_mapush.collectors.remote_env import RemoteEnvSpec
from harl_mapush.config import RunCfg
from tests.support.toy import ToyEnv

# The environment variable that names a file: while it is there, collector 0 does what it says.
FAULT = "TOY_FAULT"


class ToyWorlds(RemoteEnvSpec):
    """The learner process's description of toy worlds."""

    def __init__(self, cfg: RunCfg) -> None:
        env = ToyEnv(1)
        self.spec = env.spec
        self.num_agents = env.num_agents
        self.decision_period = env.decision_period
        self.num_envs = cfg.env.num_envs
        self.device = torch.device("cpu")


class FaultyEnv(ToyEnv):
    """Hangs or raises while the file is there."""

    def step(self, actions):
        fault = Path(os.environ.get(FAULT, "/nonexistent"))
        while fault.exists():
            if fault.read_text() == "raise":
                raise ValueError("the toy broke")
            time.sleep(0.1)
        return super().step(actions)


def make_toy(settings: Mapping[str, Any], identity: Identity) -> Collector:
    cfg, _ = config.resolve(settings, {})
    kind = FaultyEnv if identity.number == 0 else ToyEnv
    env = kind(
        cfg.env.num_envs // identity.num_collectors,
        seed=identity.number + 100 * identity.num_starts,
    )
    team = make_algorithm(cfg.algorithm, cfg.network, env.spec, "cpu", identity.number)
    assert isinstance(team, OffPolicy)
    return Collector(env, team, cfg.runner.num_steps)


def collect(*arguments: Any) -> None:
    collector_process.main(*arguments, make=make_toy)


start_toy = partial(start_worker, collect=collect)


def settings(
    num_collectors: int, num_envs: int, num_transitions: int, **over: dict[str, Any]
) -> RunCfg:
    given = {
        "sim": {"device": "cpu"},
        "env": {"num_envs": num_envs},
        "network": {"hidden_sizes": [8]},
        "algorithm": {
            "name": "hasac",
            "warmup": 64,
            "batch_size": 16,
            "buffer_size": 4096,
            "update_ratio": 0.01,
        },
        "runner": {
            "collectors": num_collectors,
            "num_steps": 4,
            "num_env_steps": 2 * num_transitions,
        },
    }
    for section, values in over.items():
        given[section] = given.get(section, {}) | values
    cfg, _ = config.resolve(given, {})
    return settled(cfg)


def make_runner(cfg: RunCfg, start: StartWorker = start_toy) -> AsyncRunner:
    torch.manual_seed(0)
    env = ToyWorlds(cfg)
    team = make_algorithm(cfg.algorithm, cfg.network, env.spec, "cpu", 1)
    return AsyncRunner(env, team, cfg, start)
