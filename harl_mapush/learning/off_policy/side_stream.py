"""Parallel work on a GPU, in a second stream."""

from collections.abc import Callable
from typing import TypeVar

import torch

_Output = TypeVar("_Output")


class SideStream:
    """A second GPU stream. On a CPU the work is done at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def run(self, work: Callable[[], _Output]) -> _Output:
        """Do ``work`` after the current stream's queued work, in parallel with later work.

        The caller keeps all tensors read by ``work`` until ``join``.
        """
        if self._stream is None:
            return work()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            return work()

    def join(self) -> None:
        """Make the current stream wait for the work, without a wait on the host."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
