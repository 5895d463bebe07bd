"""A run's simulator and devices, chosen for this machine."""

from __future__ import annotations

from typing import NamedTuple

import torch

from harl_mapush.distributed.launch import Launch
from harl_mapush.run_settings import RunnerCfg
from mqe.cores import num_cores
from mqe.registry import SimCfg, resolve_sim, slow_choice


class Machine(NamedTuple):
    """A run's simulator and devices on this machine."""

    simulator: str
    device: torch.device  # the worlds' device
    learner: torch.device


def choose_machine(sim: SimCfg, runner: RunnerCfg, launched: Launch) -> Machine:
    """Return this rank's simulator and devices. Raise ConfigError if there are none."""
    name, device = resolve_sim(sim)
    device = launched.device(device)
    learner = torch.device(runner.learner_device) if runner.collectors else device
    return Machine(name, device, learner)


def advice(sim: SimCfg, num_threads: int | None) -> list[str]:
    """Return notes about a slow simulator, or about more torch threads than cores."""
    notes = []
    slow = slow_choice(sim)
    if slow is not None:
        notes.append(f"Note: {slow}.")
    cores = num_cores()
    threads = num_threads or 1
    if threads > cores:
        notes.append(
            f"Note: runner.torch_threads={threads} on {cores} cores, where they wait for one "
            "another."
        )
    return notes
