"""Work on a GPU beside that of the current stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

_Output = TypeVar("_Output")


class SideStream:
    """A stream of its own on a GPU; on a CPU the work is done at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def run(self, work: Callable[[], _Output]) -> _Output:
        """Do ``work`` after what the current stream has to do so far, and beside what follows.

        The caller keeps tensors that ``work`` reads until ``join``.
        """
        if self._stream is None:
            return work()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            return work()

    def join(self) -> None:
        """Make the current stream wait for the work; the host does not wait."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
