"""The type of a stage, its errors, and checks that several stages share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from harl_mapush.runner import Runner
from mapush.doctor.checkup import Checkup
from mqe.env.environment import MultiAgentEnv

REPORT = "this is a bug: please report it with the output of mapush doctor --json"
_OURS = ("mqe.", "harl_mapush.")  # modules whose objects are searched for tensors


class StageError(Exception):
    """The failure of a stage: the problem, and a hint for the user."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


class StageSkippedError(Exception):
    """The reason why a stage that training does not need cannot run on this machine."""


class Stage(NamedTuple):
    """One step of the check."""

    name: str
    run: Callable[[Checkup], str]  # returns its line of findings, or raises
    hint: str  # advice for failures without a hint of their own
    needs_gpu: bool = False
    any_gpu_will_do: bool = False  # a GPU that the run does not use is enough
    needs_ranks: bool = False  # more than one


def env_of(checkup: Checkup) -> MultiAgentEnv:
    """Return the worlds that an earlier stage built."""
    assert checkup.env is not None
    return checkup.env


def runner_of(checkup: Checkup) -> Runner:
    """Return the runner that an earlier stage built."""
    assert checkup.runner is not None
    return checkup.runner


def finite(name: str, tensor: Tensor) -> None:
    """Raise StageError if a tensor has numbers that are not finite."""
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise StageError(
            f"{bad} of {math.prod(tensor.shape)} {name} are not finite numbers", REPORT
        )


def tensors_of(thing: Any, name: str, seen: set[int] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors in ``thing``, with names: in containers, networks and our own objects."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield name, thing
    elif isinstance(thing, nn.Module):
        for part, tensor in (*thing.named_parameters(), *thing.named_buffers()):
            yield f"{name}.{part}", tensor
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from tensors_of(value, f"{name}[{key!r}]", seen)
    elif isinstance(thing, (list, tuple)):
        keys = getattr(thing, "_fields", range(len(thing)))  # a named tuple has names
        for key, value in zip(keys, thing, strict=True):
            part = f".{key}" if isinstance(key, str) else f"[{key}]"
            yield from tensors_of(value, f"{name}{part}", seen)
    elif type(thing).__module__.startswith(_OURS):
        for key, value in vars(thing).items():
            yield from tensors_of(value, f"{name}.{key.lstrip('_')}", seen)
