"""The stages of the doctor, how they fail, and checks that several of them share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from harl_mapush.runner import Runner
from mapush.doctor.checkup import Checkup
from mqe.env.environment import MultiAgentEnv

REPORT = "this is a fault of the program: please report it with the output of mapush doctor --json"


class StageError(Exception):
    """A stage that failed: what is wrong, and what to do about it."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


class StageSkippedError(Exception):
    """A stage that this machine cannot pass, and that training does not need: what is missing."""


class Stage(NamedTuple):
    """One step of the check."""

    name: str
    run: Callable[[Checkup], str]  # gives what there is to say, or raises
    hint: str  # what to do where the stage itself does not know better
    needs_gpu: bool = False
    any_gpu_will_do: bool = False  # also one that the run does not use
    needs_ranks: bool = False  # more than one
    needs_worker: bool = False  # a simulator in a process of its own


def env_of(checkup: Checkup) -> MultiAgentEnv:
    """Return the worlds that an earlier stage built."""
    assert checkup.env is not None
    return checkup.env


def runner_of(checkup: Checkup) -> Runner:
    """Return the learner that an earlier stage built."""
    assert checkup.runner is not None
    return checkup.runner


def finite(name: str, tensor: Tensor) -> None:
    """Raise StageError if a tensor has numbers that are not finite."""
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise StageError(
            f"{bad} of {math.prod(tensor.shape)} {name} are not finite numbers", REPORT
        )
