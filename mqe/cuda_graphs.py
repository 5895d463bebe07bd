"""Recording CUDA graphs on any device of a process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


@contextmanager
def capturing(
    graph: torch.cuda.CUDAGraph, device: torch.device, pool: Any = None, generator: torch.Generator | None = None
) -> Iterator[None]:
    """Record what is launched on ``device`` into ``graph``, whose memory is ``pool``'s or its own.

    Each replay draws anew from ``generator``. What fails in between leaves stream and device as they were.
    """
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)), _no_garbage_collection():
        if generator is not None:
            graph.register_generator_state(generator)  # puts what replays read on the current device
        stream = capture_stream(torch.cuda.current_device())
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            yield
        torch.cuda.current_stream().wait_stream(stream)


@cache
def capture_stream(index: int) -> torch.cuda.Stream:
    """Give the stream on which device ``index`` captures: torch's is that of the first device that does."""
    return torch.cuda.Stream(index)


@contextmanager
def lasting() -> Iterator[None]:
    """Make tensors that may be written to at any time, also where the caller is in inference mode."""
    has_gradients = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(has_gradients):
        yield


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Leave other graphs and their memory alone: to free them would end up in the recording, or break it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
