"""How a batch is cut: into minibatches by random order, and into tiles that a cache holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor

from harl_mapush.storage import ActorBatch, CriticBatch, gather, num_rows, split

_CPU_TILE_ROWS = 4096  # rows a pass where memory is cached: larger passes run at the speed of main memory

_Batch = TypeVar("_Batch", ActorBatch, CriticBatch)


class Shuffle:
    """Random orders of training rows; each run's own, so that a resume goes on with the same ones."""

    def __init__(self, generator: torch.Generator, host_generator: torch.Generator) -> None:
        self.generator, self.host_generator = generator, host_generator

    def rows(self, num_rows: int, num_minibatches: int) -> Tensor | None:
        """Draw an order of rows; None for one minibatch, where order means nothing."""
        if num_minibatches == 1:
            return None
        return torch.randperm(num_rows, generator=self.generator, device=self.generator.device)

    def agents(self, num_agents: int) -> list[int]:
        """Draw an order of agents."""
        return torch.randperm(num_agents, generator=self.host_generator).tolist()


def minibatches(
    batch: _Batch, num_epochs: int, num_minibatches: int, shuffle: Shuffle, *, every_epoch: bool
) -> Iterator[_Batch]:
    """Go ``num_epochs`` times through a batch in ``num_minibatches`` equal parts, leaving a remainder out.

    Rows are put in random order once, and minibatches are views of the copy; or before ``every_epoch``, as HARL does.
    """
    size = num_rows(batch) // num_minibatches
    if size == 0:
        raise ValueError(f"{num_rows(batch)} rows cannot be cut into {num_minibatches} minibatches; lower their number")
    shuffled = batch
    for epoch in range(num_epochs):
        if epoch == 0 or every_epoch:
            order = shuffle.rows(num_rows(batch), num_minibatches)
            shuffled = batch if order is None else gather(batch, order)
        yield from split(shuffled, size, drop_remainder=True)


def tiles(batch: _Batch) -> Iterator[_Batch]:
    """Cut a minibatch into views whose gradients are summed: cache-sized on a CPU, whole on a GPU."""
    if batch.weights.is_cuda:
        yield batch
    else:
        yield from split(batch, max(1, _CPU_TILE_ROWS // batch.weights.shape[0]))


def tile_slices(x: Tensor) -> Iterator[tuple[int, int]]:
    """Give (start, length) of the row tiles of x (rows, ...)."""
    total = x.shape[0]
    size = total if x.is_cuda else _CPU_TILE_ROWS
    for start in range(0, total, size):
        yield start, min(size, total - start)
