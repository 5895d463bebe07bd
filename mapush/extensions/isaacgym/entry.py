"""The registry's entry for Isaac Gym."""

from __future__ import annotations

import os

import mujoco
import torch

from mapush.extensions.isaacgym.engines import (
    LEAST_PAIRS,
    PAIRS_A_ROBOT,
    PAIRS_OF_REST,
    make_isaacgym,
)
from mqe.config import ConfigError
from mqe.registry import SIMULATORS, SimCfg, SimulatorEntry
from mqe.sim.simulator import Simulator

JOINTS = 12  # of each robot
# Environment variable: the path of Isaac Gym's interpreter. Files of settings name no program.
PYTHON = "MAPUSH_ISAAC_PYTHON"
# Reports of cards with 8 GB: 1 to 2 GB for 2^23 pairs, and about 2.5 MB for a world
_PAIR_BYTES = 200
_WORLD_BYTES = 2.5e6


def _make(model: mujoco.MjModel, num_envs: int, cfg: SimCfg, device: torch.device) -> Simulator:
    return make_isaacgym(model, num_envs, device, os.environ[PYTHON])


def _check_isaacgym(cfg: SimCfg, device: torch.device) -> None:
    if PYTHON not in os.environ:
        raise ConfigError(
            f"sim.name={cfg.name}: set the environment variable {PYTHON} to the path of Isaac "
            "Gym's interpreter, for example /opt/py38/bin/python"
        )
    if not hasattr(os, "memfd_create"):
        raise ConfigError(
            f"sim.name={cfg.name}: a simulator in its own process needs Linux; say --sim mujoco"
        )


def _plan_isaacgym(model: mujoco.MjModel, cfg: SimCfg) -> tuple[float, float]:
    """Return the memory [bytes] of PhysX's buffer of pairs, and per world."""
    num_robots = model.nu // JOINTS
    pairs_a_world = PAIRS_A_ROBOT * num_robots + PAIRS_OF_REST
    return LEAST_PAIRS * _PAIR_BYTES, _WORLD_BYTES + pairs_a_world * _PAIR_BYTES


SIMULATORS.register(
    "isaacgym",
    SimulatorEntry(_make, _check_isaacgym, _plan_isaacgym, has_part_sensors=False),
)
