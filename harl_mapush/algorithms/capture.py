"""Whole stretches of learning behind CUDA graphs: thousands of small operations, launched as one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from mqe.cuda_graphs import capturing, lasting

EAGER_CALLS = 2  # run as they are first: they load kernels and allocate what is allocated once

_Output = TypeVar("_Output")


class Graphs:
    """Functions over tensors that stay where they are, captured at their third call and replayed from then on.

    Where there is no CUDA, functions just run. Graphs share their memory, so any of them may overwrite what another one
    gave: the caller gets copies.
    """

    def __init__(self, device: torch.device, generator: torch.Generator) -> None:
        """Capture on ``device``; ``generator`` is the only one that captured functions draw from."""
        self._enabled = device.type == "cuda"
        self._device, self._generator = device, generator
        self._known: dict[Hashable, _Known] = {}
        self._pool: Any = None  # shared: replays follow one another

    def __call__(
        self, key: Hashable, function: Callable[..., _Output], *inputs: Tensor, over: object = None
    ) -> _Output:
        """Do ``function(*inputs)``, known by ``key``: the same key stands for the same work on the same shapes.

        ``over`` is what it works on besides; another one than the last time is captured anew, and the last forgotten.
        """
        if not self._enabled:
            return function(*inputs)
        known = self._known.get(key)
        if known is None or known.over is not over:
            known = self._known[key] = _Known(over)
        known.calls += 1
        if known.calls <= EAGER_CALLS:
            return function(*inputs)
        if known.recorded is None:
            known.recorded = self._record(function, inputs)
        graph, places, output = known.recorded
        for place, value in zip(places, inputs, strict=True):
            place.copy_(value)
        graph.replay()
        return cast(_Output, _copy(output))

    def _record(
        self, function: Callable[..., object], inputs: tuple[Tensor, ...]
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor], object]:
        with lasting():
            graph, places = torch.cuda.CUDAGraph(), [value.clone() for value in inputs]
            with capturing(graph, self._device, self._pool, self._generator):
                output = function(*places)
        self._pool = self._pool or graph.pool()
        return graph, places, output


@dataclass(eq=False)
class _Known:
    over: object
    calls: int = 0
    recorded: tuple[torch.cuda.CUDAGraph, list[Tensor], object] | None = None


def _copy(output: Any) -> Any:
    """Copy the tensors of nested dicts and tuples."""
    if isinstance(output, Tensor):
        return output.clone()
    if isinstance(output, dict):
        return {name: _copy(value) for name, value in output.items()}
    if isinstance(output, tuple):
        values = [_copy(value) for value in output]
        return type(output)(*values) if hasattr(output, "_fields") else tuple(values)
    return output
