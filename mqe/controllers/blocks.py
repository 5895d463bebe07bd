"""Networks over equal blocks of worlds: a world's result does not depend on the number of other
worlds.

Libraries multiply matrices with few rows, and a tensor's last few elements, in another order than
the rest. The results differ in the last bits. So every tensor has a whole number of blocks, and
every product has one block's rows. A world then has equal results with any other worlds, if the
world stays at its row within a block.
"""

from collections.abc import Callable

import torch
from torch import Tensor

SIZE = 32  # worlds: whole registers of every processor


class ActiveWorlds:
    """Active worlds, packed into as few blocks as possible."""

    def __init__(self, resting: Tensor, size: int = SIZE) -> None:
        """Follow the simulator's tensor ``resting`` (N,) bool. N is a multiple of ``size``."""
        self.size = size
        self._resting = resting
        self._known = torch.zeros_like(resting)
        self._order = torch.arange(len(resting), device=resting.device)

    def order(self) -> Tensor:
        """Return the indices (M,) of the worlds to compute, each at its own row within a block.

        M is a multiple of the block size. Resting worlds fill the blocks at rows with fewer active
        worlds.
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
    """A function over worlds, evaluated block by block for active worlds only."""

    def __init__(self, function: Callable[[Tensor], Tensor], worlds: ActiveWorlds) -> None:
        """Wrap ``function``, a map from (S, ...) to (S, ...). S is the block size."""
        self._function = function
        self._worlds = worlds

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the results (N, ...) for ``rows`` (N, ...). Rows of resting worlds may be zero."""
        order = self._worlds.order()
        if len(order) == len(rows):
            return torch.cat([self._function(block) for block in rows.split(self._worlds.size)])
        part = torch.cat([self._function(block) for block in rows[order].split(self._worlds.size)])
        return part.new_zeros(len(rows), *part.shape[1:]).index_copy_(0, order, part)
