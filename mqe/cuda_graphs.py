"""Functions as CUDA graphs: thousands of small operations in one launch, on any device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

EAGER_CALLS = 2  # run as they are first: they load kernels and allocate what is allocated once

_Output = TypeVar("_Output")


class GraphMemory:
    """Memory for several graphs. Each graph may overwrite another's results."""

    pool: Any = None


class GraphedFunction(Generic[_Output]):
    """A function on tensors, recorded as a CUDA graph at its third call and replayed from then on.

    A wait for the device inside the function breaks the recording. The next call tries again.
    """

    def __init__(
        self,
        device: torch.device,
        pack: Callable[[_Output], Any],
        unpack: Callable[[Any], _Output],
        memory: GraphMemory | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Record on ``device``. The function may draw from ``generator`` only.

        ``pack`` turns the function's result into the recorded result, and ``unpack`` reverses this
        after every replay. ``unpack`` must copy, because the next replay writes to the same memory.
        """
        self._device = device
        self._pack = pack
        self._unpack = unpack
        self._generator = generator
        self._memory = GraphMemory() if memory is None else memory
        self._calls = 0
        self._recorded: _Recorded | None = None

    def __call__(self, function: Callable[..., _Output], *inputs: Tensor) -> _Output:
        """Return ``function(*inputs)``. Every call must do the same work on the same shapes."""
        self._calls += 1
        if self._calls <= EAGER_CALLS:
            return function(*inputs)
        if self._recorded is None:
            self._recorded = self._record(function, inputs)
        recorded = self._recorded
        for recorded_input, value in zip(recorded.places, inputs, strict=True):
            recorded_input.copy_(value)
        recorded.graph.replay()
        return self._unpack(recorded.output)

    def _record(self, function: Callable[..., _Output], inputs: tuple[Tensor, ...]) -> _Recorded:
        with lasting():
            graph = torch.cuda.CUDAGraph()
            places = [value.clone() for value in inputs]
            with capturing(graph, self._device, self._memory.pool, self._generator):
                output = self._pack(function(*places))
        self._memory.pool = self._memory.pool or graph.pool()
        return _Recorded(graph, places, output)


class _Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    places: list[Tensor]  # to be filled in
    output: Any


@contextmanager
def capturing(
    graph: torch.cuda.CUDAGraph,
    device: torch.device,
    pool: Any = None,
    generator: torch.Generator | None = None,
) -> Iterator[None]:
    """Context manager: record launches on ``device`` into ``graph``, with memory from ``pool`` or
    its own.

    Each replay draws anew from ``generator``. An error restores stream and device.
    """
    with (
        torch.cuda.device(device),
        torch.cuda.stream(torch.cuda.current_stream(device)),
        _no_garbage_collection(),
    ):
        if generator is not None:
            # Puts what replays read on the current device.
            graph.register_generator_state(generator)
        # Matrix products share a workspace if they were captured on the same stream. What runs
        # beside others, on a stream of its own, is captured there, or the two could meet in it.
        stream = torch.cuda.current_stream()
        if stream == torch.cuda.default_stream():
            stream = capture_stream(torch.cuda.current_device())
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            yield
        torch.cuda.current_stream().wait_stream(stream)


@cache
def capture_stream(index: int) -> torch.cuda.Stream:
    """Return device ``index``'s stream for captures.

    torch's default stream belongs to the first device that captures.
    """
    return torch.cuda.Stream(index)


@contextmanager
def lasting() -> Iterator[None]:
    """Context manager: create tensors that stay writable, also in a caller's inference mode."""
    has_gradients = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(has_gradients):
        yield


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Context manager: keep the garbage collector off.

    Freeing other graphs would become part of the recording, or break the recording.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
