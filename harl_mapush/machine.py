"""A run's simulator and devices, chosen for this machine."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from harl_mapush.distributed.launch import Launch
from harl_mapush.process import say
from harl_mapush.run_settings import RunnerCfg
from mqe.config import ConfigError
from mqe.registry import SimCfg, resolve_sim, slow_choice


class Machine(NamedTuple):
    """A run's simulator and devices on this machine."""

    simulator: str
    device: torch.device  # the worlds' device
    learner: torch.device


def choose_machine(sim: SimCfg, runner: RunnerCfg, launched: Launch) -> Machine:
    """Return this rank's simulator and devices. Raise ConfigError for missing ones.

    A line tells of a slow simulator.
    """
    slow = slow_choice(sim)
    if slow is not None:
        say(f"Note: {slow}.")
    name, device = resolve_sim(sim)
    device = launched.device(device)
    learner = torch.device(runner.learner_device) if runner.collectors else device
    return Machine(name, device, learner)


def check_devices(*objects: Any) -> torch.device:
    """Return the one device of tensors, modules, optimisers, and lists or dictionaries of these.

    Raises ConfigError if they lie on several devices, or without any tensor.
    """
    places: dict[torch.device, str] = {}
    for number, member in enumerate(objects):
        for tensor in _tensors_in(member):
            places.setdefault(tensor.device, f"argument {number} ({type(member).__name__})")
    if len(places) == 1:
        return next(iter(places))
    if not places:
        raise ConfigError("check_devices: no tensor in these objects; pass modules or tensors")
    named = ", ".join(f"{owner} on {device}" for device, owner in places.items())
    raise ConfigError(f"check_devices: {named}; move one of them with .to(device)")


def _tensors_in(member: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in an object."""
    if isinstance(member, torch.Tensor):
        yield member
    elif isinstance(member, torch.nn.Module):
        yield from member.parameters()
        yield from member.buffers()
    elif isinstance(member, torch.optim.Optimizer):
        yield from _tensors_in(list(member.param_groups))
    elif isinstance(member, Mapping):
        for value in member.values():
            yield from _tensors_in(value)
    elif isinstance(member, (list, tuple)):
        for value in member:
            yield from _tensors_in(value)
