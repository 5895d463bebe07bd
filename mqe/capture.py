"""One CUDA graph for a whole decision: simulator, task, resets and statistics, replayed without the host."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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
        self._result: TimeStep | None = None

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
        return _clone(self._result)

    def _capture(self, actions: Tensor) -> None:
        self._actions = actions.clone()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(actions.device), torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._result = self._step(self._actions)


def _clone(step: TimeStep) -> TimeStep:
    tensors = {name: value.clone() for name, value in step._asdict().items() if isinstance(value, Tensor)}
    return step._replace(**tensors, info={name: value.clone() for name, value in step.info.items()})
