"""Networks over equal blocks of worlds: a world's result does not depend on the number of other
worlds.

Libraries multiply matrices of few rows, and the last few numbers of a tensor, in another order than
the rest, and the results differ in the last bits. So every tensor has a whole number of blocks, and
every product has the rows of one. A world that keeps its place within a block then has the same
numbers whatever the other worlds are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SIZE = 32  # worlds: whole registers of every processor


class ActiveWorlds:
    """The worlds that are not at rest, packed into as few blocks as possible."""

    def __init__(self, resting: Tensor, size: int = SIZE) -> None:
        """Follow ``resting`` (N,) bool, the simulator's own; N is a multiple of ``size``."""
        self.size = size
        self._resting = resting
        self._known = torch.zeros_like(resting)
        self._order = torch.arange(len(resting), device=resting.device)

    def order(self) -> Tensor:
        """Return the indices (M,) of the worlds to compute, M a multiple of the block size, each at
        its own place within a block.

        At places that fewer active worlds have than others, resting ones fill the blocks.
        """
        if not torch.equal(self._known, self._resting):
            self._known = self._resting.clone()
            is_active = ~self._known.view(-1, self.size)
            blocks = is_active.byte().argsort(dim=0, descending=True, stable=True)[
                : int(is_active.sum(dim=0).max())
            ]
            self._order = (
                blocks * self.size + torch.arange(self.size, device=blocks.device)
            ).flatten()
        return self._order


class Blocks:
    """A function of worlds that is evaluated block by block, for active worlds only."""

    def __init__(self, function: Callable[[Tensor], Tensor], worlds: ActiveWorlds) -> None:
        """Wrap ``function``, which maps (S, ...) to (S, ...); S is the block size."""
        self._function = function
        self._worlds = worlds

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the results (N, ...) for ``rows`` (N, ...); rows of worlds at rest may be zero."""
        order = self._worlds.order()
        if len(order) == len(rows):
            return torch.cat([self._function(block) for block in rows.split(self._worlds.size)])
        part = torch.cat([self._function(block) for block in rows[order].split(self._worlds.size)])
        return part.new_zeros(len(rows), *part.shape[1:]).index_copy_(0, order, part)
