"""The simulators in processes of their own, as entries of the registry."""

from __future__ import annotations

import os
from collections.abc import Callable

import mujoco
import torch

from mapush.extensions.isaacgym.engines import make_process
from mqe.config import ConfigError
from mqe.registry import SIMULATORS, SimCfg, SimulatorEntry
from mqe.sim.simulator import Simulator


def _in_process(name: str) -> Callable[[mujoco.MjModel, int, SimCfg, torch.device], Simulator]:
    def make(model: mujoco.MjModel, num_envs: int, cfg: SimCfg, device: torch.device) -> Simulator:
        return make_process(
            name,
            model,
            num_envs,
            device,
            cfg.python,
            (cfg.step_timeout, cfg.start_timeout),
            cfg.contact_pairs,
        )

    return make


def _check_linux(cfg: SimCfg, device: torch.device) -> None:
    if not hasattr(os, "memfd_create"):
        raise ConfigError(
            f"sim.name={cfg.name}: a simulator in its own process needs Linux; say --sim mujoco"
        )


def _check_isaacgym(cfg: SimCfg, device: torch.device) -> None:
    if cfg.python is None:
        raise ConfigError(
            "sim.python: name Isaac Gym's interpreter, --set sim.python=/path/to/python3.8"
        )
    _check_linux(cfg, device)


SIMULATORS.register(
    "isaacgym", SimulatorEntry(_in_process("isaacgym"), _check_isaacgym, has_own_process=True)
)
SIMULATORS.register(
    "mujoco_worker",
    SimulatorEntry(
        _in_process("mujoco_worker"), _check_linux, has_own_process=True, runs_on_gpu=False
    ),
)
