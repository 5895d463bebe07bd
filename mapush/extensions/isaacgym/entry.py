"""The simulators in processes of their own, as entries of the registry."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import mujoco
import torch

from mapush.extensions.isaacgym.engines import make_process
from mqe.config import ConfigError, option
from mqe.registry import SIMULATORS, SimCfg, SimulatorEntry
from mqe.sim.simulator import Simulator


@dataclass(frozen=True)
class ProcessSimCfg(SimCfg):
    """Section ``sim`` of a simulator in its own process."""

    python: str | None = option(
        None, "interpreter of the simulator's process; null: the interpreter of mapush"
    )
    step_timeout: float = option(
        4.0, "time after which a step of the process counts as lost [s]", min=0.1, max=86400.0
    )
    start_timeout: float = option(
        300.0,
        "time after which the start of the process, first step included, counts as lost [s]",
        min=0.1,
        max=86400.0,
    )


@dataclass(frozen=True)
class IsaacGymCfg(ProcessSimCfg):
    """Section ``sim`` of Isaac Gym."""

    contact_pairs: int | None = option(
        None,
        "pairs of shapes in Isaac Gym's buffer on the GPU; null: by worlds and robots",
        min=1024,
        max=2**28,
    )


def _make(
    model: mujoco.MjModel, num_envs: int, cfg: ProcessSimCfg, device: torch.device
) -> Simulator:
    return make_process(
        cfg.name,
        model,
        num_envs,
        device,
        cfg.python,
        (cfg.step_timeout, cfg.start_timeout),
        cfg.contact_pairs if isinstance(cfg, IsaacGymCfg) else None,
    )


def _check_linux(cfg: SimCfg, device: torch.device) -> None:
    if not hasattr(os, "memfd_create"):
        raise ConfigError(
            f"sim.name={cfg.name}: a simulator in its own process needs Linux; say --sim mujoco"
        )


def _check_isaacgym(cfg: ProcessSimCfg, device: torch.device) -> None:
    if cfg.python is None:
        raise ConfigError(
            "sim.python: name Isaac Gym's interpreter, --set sim.python=/path/to/python3.8"
        )
    _check_linux(cfg, device)


_SETTINGS: dict[str, Any] = {
    "has_part_sensors": False,
    "changeable": ("python", "step_timeout", "start_timeout", "contact_pairs"),
}
SIMULATORS.register(
    "isaacgym", SimulatorEntry(_make, _check_isaacgym, cfg=IsaacGymCfg, **_SETTINGS)
)
SIMULATORS.register(
    "mujoco_worker",
    SimulatorEntry(_make, _check_linux, runs_on_gpu=False, cfg=ProcessSimCfg, **_SETTINGS),
)
