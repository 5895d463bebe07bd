"""Networks over blocks of worlds of one size, so that a world's numbers do not depend on how many run beside it.

Libraries multiply matrices of few rows, and the last few numbers of a tensor, in another order than the rest, and the
results differ in the last bits. Where every tensor has a whole number of blocks, and every product the rows of one, a
world that keeps its place within a block has the same numbers whatever the other worlds are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SIZE = 32  # worlds: whole registers of every processor


class Blocks:
    """A function of rows that computes ``size`` of them at a time."""

    def __init__(self, function: Callable[[Tensor], Tensor], size: int) -> None:
        """Compute ``function`` (size, ...) to (size, ...)."""
        self._function, self._size = function, size

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the results (N, ...) of ``rows`` (N, ...), N a multiple of the size."""
        return torch.cat([self._function(block) for block in rows.split(self._size)])
