"""One CUDA graph for a whole decision: simulator, task, resets and statistics, replayed without the host."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mqe.cuda_graphs import capturing
from mqe.vec_env import TimeStep

_EAGER_STEPS = 2  # run as they are first: they load kernels and allocate what is allocated once


class CapturedStep:
    """A step function behind a CUDA graph; anything in it that waits for the device breaks the capture."""

    def __init__(self, step: Callable[[Tensor], TimeStep]) -> None:
        """Capture ``step``, actions (N, A, U) to TimeStep, once it has run a few times."""
        self._step = step
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._actions: Tensor | None = None
        self._result: PackedStep | None = None

    def __call__(self, actions: Tensor) -> TimeStep:
        """Do what the step function does; the tensors returned are the caller's own."""
        self._calls += 1
        if self._calls <= _EAGER_STEPS:
            return self._step(actions)
        if self._graph is None:
            self._capture(actions)
        assert self._graph is not None
        assert self._actions is not None
        assert self._result is not None
        self._actions.copy_(actions)
        self._graph.replay()
        return self._result.copy()

    def _capture(self, actions: Tensor) -> None:
        self._actions = actions.clone()
        self._graph = torch.cuda.CUDAGraph()
        with capturing(self._graph, actions.device):
            self._result = PackedStep(self._step(self._actions))


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
