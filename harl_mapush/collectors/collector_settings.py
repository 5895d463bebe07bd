"""The settings of a run with collectors: their checks and automatic values."""

import dataclasses
import math

import torch

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.config import RunCfg
from mqe.config import ConfigError
from mqe.cores import num_cores
from mqe.registry import resolve_device, resolve_sim


def settled(cfg: RunCfg) -> RunCfg:
    """Return a run's settings with the devices and threads of its processes.

    Raises ConfigError for settings in conflict with collectors.
    """
    runner = cfg.runner
    algorithm = cfg.algorithm
    if algorithm.name not in off_policy_algorithms():
        raise ConfigError(
            f"runner.collectors={runner.collectors}: {algorithm.name} cannot learn from "
            f"collectors; use --algo {', '.join(off_policy_algorithms())}, or "
            "runner.collectors=0"
        )
    if cfg.env.num_envs % runner.collectors:
        fitting = math.ceil(cfg.env.num_envs / runner.collectors) * runner.collectors
        raise ConfigError(
            f"runner.collectors={runner.collectors} must divide env.num_envs={cfg.env.num_envs}; "
            f"set env.num_envs={fitting}, for instance"
        )

    name, device = resolve_sim(cfg.sim)
    num_threads = cfg.sim.num_threads or max(1, num_cores() // runner.collectors)
    learner = resolve_device(
        runner.learner_device, "runner.learner_device", torch.cuda.is_available()
    )
    return dataclasses.replace(
        cfg,
        sim=dataclasses.replace(cfg.sim, name=name, device=str(device), num_threads=num_threads),
        algorithm=algorithm.for_acting(),
        runner=dataclasses.replace(runner, learner_device=str(learner)),
    )


def off_policy_algorithms() -> list[str]:
    """Return the names of the algorithms with ``takes_collectors``."""
    return [name for name, entry in ALGORITHMS.items() if entry.cfg.takes_collectors]
