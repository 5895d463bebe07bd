"""Training batches of a rollout, cut into minibatches in random order, and these into tiles.

T decisions, N environments, L consecutive decisions of a training sequence (1 without recurrence),
B sequences, R recurrent layers, H hidden size. A tile has as many rows as fit into a cache.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from harl_mapush.distributed.ranks import ALONE, Ranks

# Rows of a pass on a CPU; larger passes do not fit into the cache and are slower.
CPU_TILE_ROWS = 4096


class ActorBatch(NamedTuple):
    """An actor's training data (L, B, ...), with hidden (1, B, R, H) at the first decisions."""

    obs: Tensor
    actions: Tensor
    log_probs: Tensor  # per action dimension, under the policy that acted
    advantages: Tensor  # (L, B), normalised
    weights: Tensor  # (L, B)
    factor: Tensor  # (L, B)
    hidden: Tensor | None
    masks: Tensor | None  # (L, B)


class CriticBatch(NamedTuple):
    """A critic's training data (L, B, ...), with hidden (1, B, R, H) at the first decisions."""

    state: Tensor
    values: Tensor  # (L, B, V'), V' values per row
    returns: Tensor  # (L, B, V')
    weights: Tensor  # (L, B, V')
    hidden: Tensor | None
    masks: Tensor | None  # (L, B)


Batch = TypeVar("Batch", ActorBatch, CriticBatch)


class Shuffle:
    """Random orders of training rows, from generators saved with a run's state."""

    def __init__(
        self, generator: torch.Generator, host_generator: torch.Generator, ranks: Ranks = ALONE
    ) -> None:
        self.generator = generator
        self.host_generator = host_generator
        self.ranks = ranks

    def rows(self, num_rows: int, num_minibatches: int) -> Tensor | None:
        """Draw an order of rows. Return None for a single minibatch, where order has no effect."""
        if num_minibatches == 1:
            return None
        return self.ranks.order(num_rows, self.generator)

    def agents(self, num_agents: int) -> list[int]:
        """Draw an order of agents, equal on all ranks."""
        return torch.randperm(num_agents, generator=self.host_generator).tolist()


# Rows of a rollout as sequences


def sequences(x: Tensor, length: int | None) -> Tensor:
    """Cut x (T, N, ...) into (L, B, ...): chunks of ``length``, or one row a decision if None.

    The chunks are n (T / L) + segment, the rows t N + n, as in HARL. The result is a view if there
    are no chunks and x is contiguous.
    """
    steps, envs = x.shape[:2]
    if length is None:
        return x.reshape(1, steps * envs, *x.shape[2:])
    chunks = x.view(steps // length, length, envs, *x.shape[2:])
    by_chunk = chunks.permute(1, 2, 0, *range(3, chunks.dim()))
    return by_chunk.reshape(length, envs * (steps // length), *x.shape[2:])


def sequence_starts(hidden: Tensor, length: int) -> Tensor:
    """Return hidden states (1, B, R, H) at the start of chunks of ``length``, from (T, N, R, H).

    Their order is as in ``sequences``.
    """
    return hidden[::length].transpose(0, 1).reshape(1, -1, *hidden.shape[2:])


def num_rows(batch: ActorBatch | CriticBatch) -> int:
    """Return B, the number of sequences."""
    return batch.weights.shape[1]


def gather(batch: Batch, index: Tensor) -> Batch:
    """Copy the sequences ``index`` in their order."""
    return _each(lambda x: x.index_select(1, index), batch)


def concatenate(batches: list[Batch]) -> Batch:
    """Join batches along their sequences."""
    return _each(lambda *columns: torch.cat(columns, dim=1), *batches)


def _each(function: Callable[..., Tensor], *batches: Batch) -> Batch:
    """Return a batch made by ``function`` from each field of ``batches``. None stays None."""
    columns = zip(*batches, strict=True)
    made = [None if column[0] is None else function(*column) for column in columns]
    return type(batches[0])(*made)  # type: ignore[arg-type]


# Minibatches


def minibatches(
    batches: list[Batch], num_epochs: int, num_minibatches: int, shuffle: Shuffle
) -> Iterator[Batch]:
    """Yield ``num_epochs`` times ``num_minibatches`` minibatches, each with rows from every batch.

    Rows beyond an even division are left out. Rows are put in random order once. With one batch,
    minibatches are views into the ordered copy.
    """
    orders = [shuffle.rows(num_rows(batch), num_minibatches) for batch in batches]
    parts = list(cut(batches, orders, num_minibatches, concatenate))
    for _ in range(num_epochs):
        yield from parts


def cut(
    batches: list[Batch],
    orders: list[Tensor | None],
    num_minibatches: int,
    join: Callable[[list[Batch]], Batch],
) -> Iterator[Batch]:
    """Yield minibatches with every batch's rows in order. ``join`` joins their parts."""
    shares = []
    for batch, order in zip(batches, orders, strict=True):
        ordered = batch if order is None else gather(batch, order)
        shares.append(split(ordered, num_rows(batch) // num_minibatches, number=num_minibatches))

    for parts in zip(*shares, strict=True):
        yield parts[0] if len(parts) == 1 else join(list(parts))


def split(batch: Batch, size: int, *, number: int | None = None) -> Iterator[Batch]:
    """Yield views of ``size`` consecutive sequences: the first ``number`` views, or all.

    Without ``number`` the last view may be shorter.
    """
    total = num_rows(batch)
    if size >= total:
        yield batch
        return
    end = total if number is None else number * size
    for start in range(0, end, size):
        part = slice(start, start + size)
        yield _each(lambda x, part=part: x[:, part], batch)


# Tiles


def tiles(batch: Batch) -> Iterator[Batch]:
    """Yield views of a minibatch, cache-sized on a CPU, whole on a GPU. Their gradients add up."""
    size = num_rows(batch) if batch.weights.is_cuda else CPU_TILE_ROWS // len(batch.weights)
    return split(batch, max(1, size))


def row_tiles(x: Tensor) -> Sequence[Tensor]:
    """Return the tiles of x (rows, ...) as views."""
    return x.split(len(x) if x.is_cuda else CPU_TILE_ROWS)
