"""How a batch is cut: into minibatches by random order, and into tiles that a cache holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor

from harl_mapush.storage import ActorBatch, CriticBatch, concatenate, gather, num_rows, split

CPU_TILE_ROWS = 4096  # rows a pass where memory is cached: larger passes run at the speed of main memory

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
    batches: list[_Batch], num_epochs: int, num_minibatches: int, shuffle: Shuffle, *, as_harl: bool
) -> Iterator[_Batch]:
    """Go ``num_epochs`` times through batches in ``num_minibatches`` parts, each with an equal share of every batch.

    Rows that do not divide evenly are left out. Rows are put in random order once; with one batch, minibatches are
    views of the ordered copy. ``as_harl`` orders them anew every epoch and joins batches as HARL joins them.
    """
    parts: list[_Batch] = []
    for epoch in range(num_epochs):
        orders = [shuffle.rows(num_rows(batch), num_minibatches) for batch in batches if as_harl or epoch == 0]
        if epoch == 0 or (orders and orders[0] is not None):
            parts = list(_parts(batches, orders, num_minibatches, mixes_sequences=as_harl))
        yield from parts


def tiles(batch: _Batch) -> Iterator[_Batch]:
    """Cut a minibatch into views whose gradients are summed: cache-sized on a CPU, whole on a GPU."""
    if batch.weights.is_cuda:
        yield batch
    else:
        yield from split(batch, max(1, CPU_TILE_ROWS // batch.weights.shape[0]))


def tile_slices(x: Tensor) -> Iterator[tuple[int, int]]:
    """Give (start, length) of the row tiles of x (rows, ...)."""
    total = x.shape[0]
    size = total if x.is_cuda else CPU_TILE_ROWS
    for start in range(0, total, size):
        yield start, min(size, total - start)


def _parts(
    batches: list[_Batch], orders: list[Tensor | None], num_minibatches: int, *, mixes_sequences: bool
) -> Iterator[_Batch]:
    cut = []
    for batch, order in zip(batches, orders, strict=True):
        size = num_rows(batch) // num_minibatches
        if size == 0:
            raise ValueError(
                f"{num_rows(batch)} rows cannot be cut into {num_minibatches} minibatches: lower their number"
            )
        cut.append(split(batch if order is None else gather(batch, order), size, number=num_minibatches))
    for shares in zip(*cut, strict=True):
        yield shares[0] if len(shares) == 1 else concatenate(list(shares), mixes_sequences=mixes_sequences)
