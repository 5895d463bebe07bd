"""Weights of shipped policies, read once in a process."""

from __future__ import annotations

import functools
from pathlib import Path

from torch import Tensor

from mqe.controllers import frozen_policy
from mqe.pretrained import pretrained_folder, pretrained_names

_read_tensors = frozen_policy.read_tensors


def remember_shipped_policies() -> None:
    """Let policies take copies of a shipped file's tensors. Other files are read each time."""
    frozen_policy.read_tensors = _tensors


def _tensors(path: Path) -> dict[str, Tensor]:
    if path.parent not in _shipped_folders():
        return _read_tensors(path)
    return {name: tensor.clone() for name, tensor in _shipped_tensors(path).items()}


@functools.cache
def _shipped_folders() -> frozenset[Path]:
    return frozenset(pretrained_folder(name) for name in pretrained_names())


@functools.cache
def _shipped_tensors(path: Path) -> dict[str, Tensor]:
    return _read_tensors(path)
