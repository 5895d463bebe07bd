"""The first part of a network, from flat vectors with sets to features.

Neither the order of entities nor absent entities affect the features, so one network reads sets
with any number of entities. E entities, K features per entity, W width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mqe.vec_env import EntityBlock


class SetReader(nn.Module):
    """Pools each set, the robots or the outline's points (Zaheer et al. 2017).

    A vector without sets stays unchanged.
    """

    def __init__(self, size: int, blocks: Sequence[EntityBlock], width: int) -> None:
        """Read ``size``-dimensional vectors with the sets ``blocks``, through hidden layers
        ``width`` wide.
        """
        super().__init__()
        self.in_size = size
        self.width = width
        self.blocks = tuple(blocks)
        self.pools = nn.ModuleDict({block.kind: Pool(block.size, width) for block in blocks})
        self.own_slices = _slices_between(size, self.blocks)
        num_own = sum(part.stop - part.start for part in self.own_slices)
        self.out_size = num_own + 2 * width * len(self.pools)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (..., out_size) for vectors (..., size)."""
        if not self.blocks:
            return x
        outside_sets = torch.cat([x[..., part] for part in self.own_slices], dim=-1)
        pooled = [self.pools[block.kind](entities_of(x, block)) for block in self.blocks]
        return torch.cat((outside_sets, *pooled), dim=-1)


class Pool(nn.Module):
    """Mean and maximum over encoded entities, zeros without entities."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )

    def forward(self, entities: Tensor) -> Tensor:
        """Return features (..., 2 W) for entities (..., E, K)."""
        is_there = entities[..., :1]
        encoded = self.encoder(entities) * is_there  # not negative: zeros are the least
        mean = encoded.sum(dim=-2) / is_there.sum(dim=-2).clamp(min=1.0)
        return torch.cat((mean, encoded.amax(dim=-2)), dim=-1)


def entities_of(x: Tensor, block: EntityBlock) -> Tensor:
    """Return a set's entities (..., E, K) from vectors (..., size)."""
    numbers = x[..., block.start : block.end]
    # Unlike unflatten, reshape lets an exported network take any number of rows.
    return numbers.reshape(*x.shape[:-1], block.num_entities, block.size)


def _slices_between(size: int, blocks: Sequence[EntityBlock]) -> list[slice]:
    """Return a vector's slices outside all blocks, given its ``size``."""
    slices = []
    start = 0
    for block in sorted(blocks, key=lambda block: block.start):
        slices.append(slice(start, block.start))
        start = block.end
    slices.append(slice(start, size))
    return [part for part in slices if part.stop > part.start]
