"""CUDA graphs of parts of an update and of a team's decisions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from mqe.cuda_graphs import GraphedFunction, GraphMemory

_Output = TypeVar("_Output")


class Graphs:
    """Functions of tensors at fixed addresses, replayed as CUDA graphs that share their memory.

    On other devices the functions run as they are.
    """

    def __init__(self, device: torch.device, generator: torch.Generator) -> None:
        """Record on ``device``; recorded functions may draw from ``generator`` only."""
        self._enabled = device.type == "cuda"
        self._device = device
        self._generator = generator
        self._memory = GraphMemory()
        self._known: dict[Hashable, _Known] = {}

    def __call__(
        self, key: Hashable, function: Callable[..., _Output], *inputs: Tensor, over: object = None
    ) -> _Output:
        """Return ``function(*inputs)``; a ``key`` stands for one function and set of shapes.

        ``over`` is another object that the function uses. If it changes, the graph is recorded
        again.
        """
        if not self._enabled:
            return function(*inputs)
        known = self._known.get(key)
        if known is None or known.over is not over:
            graphed = GraphedFunction(self._device, _same, _copy, self._memory, self._generator)
            known = _Known(over, graphed)
            self._known[key] = known
        return known.graphed(function, *inputs)


class _Known(NamedTuple):
    over: object
    graphed: GraphedFunction[Any]


def _same(output: Any) -> Any:
    return output


def _copy(output: Any) -> Any:
    """Copy the tensors in nested dicts and tuples."""
    if isinstance(output, Tensor):
        return output.clone()
    if isinstance(output, dict):
        return {name: _copy(value) for name, value in output.items()}
    if isinstance(output, tuple):
        values = [_copy(value) for value in output]
        return type(output)(*values) if hasattr(output, "_fields") else tuple(values)
    return output
