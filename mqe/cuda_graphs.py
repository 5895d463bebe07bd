"""Recording CUDA graphs on any device of a process."""

from __future__ import annotations

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

    Each replay draws anew from ``generator``. Every device has its own stream for captures: torch's belongs to the
    first device that captures in a process.
    """
    with torch.cuda.device(device):
        if generator is not None:
            graph.register_generator_state(generator)  # puts what replays read on the current device
        stream = _capture_stream(torch.cuda.current_device())
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            yield


@cache
def _capture_stream(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)
