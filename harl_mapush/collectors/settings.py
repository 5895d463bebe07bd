"""The settings of a run with collectors: what goes together, and what ``auto`` means."""

from __future__ import annotations

import dataclasses
import importlib.util

import torch

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.config import RunCfg
from mqe.config import ConfigError
from mqe.cores import num_cores
from mqe.registry import SimCfg, resolve_sim


def settled(cfg: RunCfg) -> RunCfg:
    """Return a run's settings with devices, threads and update ratio as its processes take them.

    Raises ConfigError where settings do not go together.
    """
    runner = cfg.runner
    algorithm = cfg.algorithm
    if algorithm.name not in off_policy_algorithms():
        raise ConfigError(
            f"runner.collectors={runner.collectors}: {algorithm.name} learns from its newest "
            "transitions alone; take "
            f"--algo {', '.join(off_policy_algorithms())}, or runner.collectors=0"
        )
    if cfg.env.num_envs % runner.collectors:
        raise ConfigError(
            f"runner.collectors={runner.collectors} must divide env.num_envs={cfg.env.num_envs}; "
            "try "
            f"env.num_envs={-(-cfg.env.num_envs // runner.collectors) * runner.collectors}"
        )
    sim = _of_a_cluster(cfg.sim) if runner.engine == "ray" else cfg.sim
    name, device = resolve_sim(sim)
    num_threads = sim.num_threads or max(1, num_cores() // runner.collectors)
    ratio = algorithm.update_ratio if runner.update_ratio is None else runner.update_ratio
    return dataclasses.replace(
        cfg,
        sim=dataclasses.replace(sim, name=name, device=str(device), num_threads=num_threads),
        algorithm=dataclasses.replace(algorithm, update_ratio=ratio),
        runner=dataclasses.replace(
            runner, learner_device=str(learner_device(runner.learner_device))
        ),
    )


def _of_a_cluster(sim: SimCfg) -> SimCfg:
    """Return the simulator of collectors on other machines, where devices and cores of this one
    say nothing.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "runner.engine=ray: Ray is not installed; pip install 'mapush[ray]', or say local"
        )
    if sim.device not in ("auto", "cpu"):
        raise ConfigError(
            f"sim.device={sim.device}: collectors of runner.engine=ray simulate on processors; "
            "say --device cpu "
            "(runner.learner_device is the learner's), or runner.engine=local"
        )
    return dataclasses.replace(sim, device="cpu", num_threads=sim.num_threads or 1)


def off_policy_algorithms() -> list[str]:
    """Return the names of the algorithms that learn from a replay which collectors can fill."""
    return [name for name, entry in ALGORITHMS.items() if entry.cfg.takes_collectors]


def learner_device(name: str) -> torch.device:
    """Return the device of a learner beside collectors; raise ConfigError for one that is not
    here.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"runner.learner_device: unknown device {name!r}; allowed: auto, cpu, cuda, cuda:K"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"runner.learner_device: no {name} here; set it to cpu or auto")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
