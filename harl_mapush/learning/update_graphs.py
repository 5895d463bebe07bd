"""CUDA graphs for parts of an update and a team's decisions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from mqe.cuda_graphs import GraphedFunction, GraphMemory
from mqe.resumable import map_tensors

_Output = TypeVar("_Output")


class Graphs:
    """Functions on tensors at fixed addresses, replayed as CUDA graphs with shared memory.

    On other devices the functions run directly.
    """

    def __init__(self, device: torch.device, generator: torch.Generator) -> None:
        """Record on ``device``. Recorded functions may draw from ``generator`` only."""
        self._enabled = device.type == "cuda"
        self._device = device
        self._generator = generator
        self._memory = GraphMemory()
        self._recorded: dict[Hashable, _Recorded] = {}

    def __call__(
        self, key: Hashable, function: Callable[..., _Output], *inputs: Tensor, over: object = None
    ) -> _Output:
        """Return ``function(*inputs)``. A ``key`` stands for one function and set of shapes.

        ``over`` is another object used by the function. If it changes, the graph is recorded again.
        """
        if not self._enabled:
            return function(*inputs)
        graph = self._recorded.get(key)
        if graph is None or graph.over is not over:
            graphed = GraphedFunction(
                self._device,
                _same,
                partial(map_tensors, torch.clone),
                self._memory,
                self._generator,
            )
            graph = _Recorded(over, graphed)
            self._recorded[key] = graph
        return graph.graphed(function, *inputs)


class _Recorded(NamedTuple):
    over: object
    graphed: GraphedFunction[Any]


def _same(output: Any) -> Any:
    return output
