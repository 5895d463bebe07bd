"""The registry's entry for collectors on a Ray cluster."""

from __future__ import annotations

import importlib
import importlib.util
import os
from contextlib import AbstractContextManager
from dataclasses import replace

from harl_mapush.collectors.launchers import LAUNCHERS, Launcher, LauncherEntry
from harl_mapush.config import RunCfg
from mqe.config import ConfigError, install
from mqe.registry import SimCfg

ADDRESS = "RAY_ADDRESS"  # environment variable with the address of a cluster, Ray's own name


def make_launcher(cfg: RunCfg) -> AbstractContextManager[Launcher]:
    """Return a run's launcher. This imports Ray."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # the import of Ray reads it
    return importlib.import_module("mapush.extensions.ray.ray_launcher").RayLauncher(cfg)


def sim_settings(sim: SimCfg) -> SimCfg:
    """Return the simulator's settings for collectors on other machines.

    The devices and cores of this machine do not apply there. Raises ConfigError for a GPU, or
    without Ray.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            f"runner.engine=ray: Ray is not installed; {install('ray')}, or use local"
        )
    if sim.device not in ("auto", "cpu"):
        raise ConfigError(
            f"sim.device={sim.device}: collectors of runner.engine=ray simulate on CPUs; use "
            "--device cpu (runner.learner_device is the learner's), or runner.engine=local"
        )
    return replace(sim, device="cpu", num_threads=sim.num_threads or 1)


def is_elsewhere() -> bool:
    """Return whether a cluster is named. Its machines have other memory."""
    return ADDRESS in os.environ


LAUNCHERS.register("ray", LauncherEntry(make_launcher, sim_settings, is_elsewhere))
