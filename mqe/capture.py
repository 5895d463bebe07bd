"""One CUDA graph for a whole decision: simulator, task, resets and statistics, replayed without the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mqe.cuda_graphs import capturing, lasting
from mqe.state import SceneState
from mqe.vec_env import TimeStep

_EAGER_STEPS = 2  # run as they are first: they load kernels and allocate what is allocated once


class Decided(NamedTuple):
    """What a decision gives, and what it leaves behind."""

    step: TimeStep
    state: SceneState
    figures: dict[str, Tensor]  # (N,) each


class CapturedStep:
    """A decision behind a CUDA graph; anything in it that waits for the device breaks the capture."""

    def __init__(self) -> None:
        """Capture nothing yet: the first few calls run as they are."""
        self._calls = 0
        self._recorded: _Recorded | None = None

    def __call__(self, decide: Callable[[Tensor], Decided], actions: Tensor) -> Decided:
        """Do what ``decide``, always the same, does with ``actions`` (N, A, U).

        The step's tensors are the caller's own; what is left behind lies in memory that the next call overwrites.
        """
        self._calls += 1
        if self._calls <= _EAGER_STEPS:
            return decide(actions)
        if self._recorded is None:
            self._recorded = self._record(decide, actions)
        recorded = self._recorded
        recorded.actions.copy_(actions)
        recorded.graph.replay()
        # A state of its own: what was derived from the last one no longer holds.
        return Decided(recorded.step.copy(), recorded.state.like(recorded.state.rows), recorded.figures)

    def _record(self, decide: Callable[[Tensor], Decided], actions: Tensor) -> _Recorded:
        with lasting():
            graph, place = torch.cuda.CUDAGraph(), actions.clone()
            with capturing(graph, actions.device):
                step, state, figures = decide(place)
                packed = PackedStep(step)
        return _Recorded(graph, place, packed, state, figures)


class PackedStep:
    """A TimeStep in two tensors, one of its masks and one of its numbers, so that copying it is two operations."""

    def __init__(self, step: TimeStep) -> None:
        """Take ``step`` as it is."""
        self._info = tuple(step.info)
        tensors: dict[str, Tensor] = {**step._asdict(), **step.info}
        del tensors["info"]
        masks = {name for name, tensor in tensors.items() if tensor.dtype == torch.bool}
        self._masks = _Joined({name: tensor for name, tensor in tensors.items() if name in masks})
        self._numbers = _Joined({name: tensor for name, tensor in tensors.items() if name not in masks})

    def copy(self) -> TimeStep:
        """Give it in memory of its own."""
        tensors = self._masks.copy() | self._numbers.copy()
        info = {name: tensors.pop(name) for name in self._info}
        return TimeStep(**tensors, info=info)


class _Joined:
    """Tensors of one type, side by side in one."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self._values = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])

    def copy(self) -> dict[str, Tensor]:
        parts = self._values.clone().split([shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}


class _Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    actions: Tensor  # to be filled in
    step: PackedStep
    state: SceneState
    figures: dict[str, Tensor]
