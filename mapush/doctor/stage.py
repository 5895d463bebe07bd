"""The type of a stage, its errors, and shared checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mapush.doctor.checkup import Checkup
from mqe.env.environment import MultiAgentEnv

REPORT = "this is a bug: please report it with the output of mapush doctor --json"


class StageError(Exception):
    """A stage has failed: the problem, and a hint for the user."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


class StageSkippedError(Exception):
    """The reason to skip a stage on this machine. Training does not need it."""


class Stage(NamedTuple):
    """One step of the check."""

    name: str
    run: Callable[[Checkup], str]  # returns its line of findings, or raises
    hint: str  # advice for failures without a hint of their own
    needs_gpu: bool = False
    any_gpu_will_do: bool = False  # a GPU that the run does not use is enough
    needs_ranks: bool = False  # more than one
    needs_collectors: bool = False


def env_of(checkup: Checkup) -> MultiAgentEnv:
    """Return the worlds of an earlier stage."""
    assert checkup.env is not None
    return checkup.env


def finite(name: str, tensor: Tensor) -> None:
    """Raise StageError for infinite numbers, and for NaN."""
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise StageError(
            f"{bad} of {math.prod(tensor.shape)} {name} are not finite numbers", REPORT
        )
