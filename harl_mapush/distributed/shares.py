"""One rank's part in a run: its settings, the comparison between ranks, and compilation."""

from __future__ import annotations

import dataclasses
import platform
from typing import TYPE_CHECKING, Any

import torch

from harl_mapush.distributed.launch import Launch
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.process import library_lines, say
from mqe.config import ConfigError, flatten, to_dict
from mqe.manifest import PACKAGES, installed
from mqe.registry import make_env

if TYPE_CHECKING:
    from harl_mapush.config import RunCfg
    from harl_mapush.runs.resume import SavedRun

_NUM_COMPILED = 64  # number of worlds for the compilation


def facts(cfg: RunCfg, saved: SavedRun | None) -> dict[str, Any]:
    """Return the settings and versions to compare between ranks, by name."""
    versions = {package: installed(package) for package in PACKAGES}
    versions["python"] = platform.python_version()
    start = None if saved is None else str(saved.folder)
    return versions | flatten(to_dict(cfg)) | {"the checkpoint to resume from": start}


def own_settings(cfg: RunCfg, ranks: Ranks, started: Launch, device: torch.device) -> RunCfg:
    """Return this rank's settings. Raise ConfigError if no equal division is possible."""
    if ranks.size == 1:
        return cfg
    if cfg.runner.collectors:
        raise ConfigError(
            f"runner.collectors={cfg.runner.collectors}: collectors need a single learner, not "
            f"{ranks.size} ranks; start without torchrun, or set runner.collectors=0"
        )
    num_envs, rest = divmod(cfg.env.num_envs, ranks.size)
    if rest or not num_envs:
        fitting = ranks.size * max(1, round(cfg.env.num_envs / ranks.size))
        raise ConfigError(
            f"env.num_envs={cfg.env.num_envs} (--num_envs) must be a multiple of the "
            f"{ranks.size} ranks, for instance {fitting}"
        )
    num_threads = cfg.sim.num_threads or started.threads()
    return dataclasses.replace(
        cfg,
        env=dataclasses.replace(cfg.env, num_envs=num_envs),
        sim=dataclasses.replace(cfg.sim, device=str(device), num_threads=num_threads),
    )


def compile_first(cfg: RunCfg, ranks: Ranks, started: Launch) -> None:
    """Compile the simulator's kernels on one rank per machine, and leave them in the others'
    cache.
    """
    if started.local_rank == 0:
        with library_lines(say):
            env = dataclasses.replace(cfg.env, num_envs=min(_NUM_COMPILED, cfg.env.num_envs))
            worlds = make_env(env, cfg.sim, cfg.task, seed=0)
            worlds.reset()
            shape = (worlds.num_envs, worlds.num_agents, worlds.spec.action_size)
            worlds.step(torch.zeros(shape, device=worlds.device))
            worlds.close()
    ranks.gather(None)
