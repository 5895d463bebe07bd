"""Set readers: the first part of a network, from flat vectors with sets to features.

The members of ``SET_READERS`` differ in their input from the other robots. Points on the object's
outline are always pooled. Neither the order of entities nor absent entities affect the features, so
one network reads sets with any number of entities. B rows, E entities, K features per entity, W
width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from mqe.extensions import Registry
from mqe.vec_env import EntityBlock

NUM_NEAREST = 2  # other robots in the reader "nearest"
_FAR = 1e9  # [m^2] squared distance of an absent robot


class SetReader(nn.Module):
    """Passes the flat vector on unchanged, sets included."""

    def __init__(self, size: int, blocks: Sequence[EntityBlock], width: int) -> None:
        """Read ``size``-dimensional vectors with the sets ``blocks``, through hidden layers
        ``width`` wide.
        """
        super().__init__()
        self.in_size = size
        self.out_size = size

    def forward(self, x: Tensor) -> Tensor:
        """Return features (..., out_size) for vectors (..., size)."""
        return x


class WithoutRobots(SetReader):
    """Pools the outline's points, and ignores other robots."""

    def __init__(self, size: int, blocks: Sequence[EntityBlock], width: int) -> None:
        super().__init__(size, blocks, width)
        self.width = width
        self.blocks = tuple(blocks)
        self.pools = nn.ModuleDict(
            {block.kind: Pool(block.size, width) for block in blocks if self._is_pooled(block)}
        )
        self.own_slices = _slices_between(size, self.blocks)
        num_own = sum(part.stop - part.start for part in self.own_slices)
        self.out_size = num_own + 2 * width * len(self.pools)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.own(x)]
        for block in self.blocks:
            if block.kind in self.pools:
                parts.append(self.pools[block.kind](entities_of(x, block)))
        return torch.cat(parts, dim=-1)

    def own(self, x: Tensor) -> Tensor:
        """Return the components (..., K) outside all sets, from vectors (..., size)."""
        return torch.cat([x[..., part] for part in self.own_slices], dim=-1)

    def _is_pooled(self, block: EntityBlock) -> bool:
        return not block.are_robots


class NearestRobots(WithoutRobots):
    """Pools the outline's points, and reads the two nearest robots, the nearer first, with zeros
    for missing ones.
    """

    def __init__(self, size: int, blocks: Sequence[EntityBlock], width: int) -> None:
        super().__init__(size, blocks, width)
        for block in blocks:
            if block.are_robots:
                self.out_size += NUM_NEAREST * block.size

    def forward(self, x: Tensor) -> Tensor:
        parts = [super().forward(x)]
        for block in self.blocks:
            if block.are_robots:
                parts.append(_nearest(entities_of(x, block)))
        return torch.cat(parts, dim=-1)


class DeepSet(WithoutRobots):
    """Pools the robots and the outline's points (Zaheer et al. 2017)."""

    def _is_pooled(self, block: EntityBlock) -> bool:
        return True


class Pool(nn.Module):
    """Mean and maximum over encoded entities, zeros without entities."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.encoder = _encoder(size, width)

    def forward(self, entities: Tensor) -> Tensor:
        """Return features (..., 2 W) for entities (..., E, K)."""
        is_there = entities[..., :1]
        encoded = self.encoder(entities) * is_there  # not negative: zeros are the least
        mean = encoded.sum(dim=-2) / is_there.sum(dim=-2).clamp(min=1.0)
        return torch.cat((mean, encoded.amax(dim=-2)), dim=-1)


SET_READERS: Registry[type[SetReader]] = Registry("reader of sets")
SET_READERS.register("flat", SetReader)
SET_READERS.register("none", WithoutRobots)
SET_READERS.register("nearest", NearestRobots)
SET_READERS.register("deep_set", DeepSet)
# Set reader of critics: they need all robots, also with other readers in the actors.
_CRITICS = {"none": "deep_set", "nearest": "deep_set"}


def make_reader(name: str, size: int, blocks: Sequence[EntityBlock], width: int) -> SetReader:
    """Build an actor's reader. Raise ValueError for a vector without sets."""
    if name != "flat" and not blocks:
        raise ValueError(
            f"network.sets={name} needs observations as sets; set task.observation=sets, or "
            "network.sets=flat"
        )
    return SET_READERS[name](size, blocks, width)


def make_critic_reader(
    name: str, size: int, blocks: Sequence[EntityBlock], width: int
) -> SetReader:
    """Build a critic's reader for actors with reader ``name``."""
    return make_reader(_CRITICS.get(name, name), size, blocks, width)


def entities_of(x: Tensor, block: EntityBlock) -> Tensor:
    """Return a set's entities (..., E, K) from vectors (..., size)."""
    numbers = x[..., block.start : block.end]
    # Unlike unflatten, reshape lets an exported network take any number of rows.
    return numbers.reshape(*x.shape[:-1], block.num_entities, block.size)


def _encoder(size: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())


def _nearest(robots: Tensor) -> Tensor:
    """Return the two nearest robots' features (..., 2 K), from (..., E, K)."""
    lacking = NUM_NEAREST - robots.shape[-2]
    if lacking > 0:
        robots = pad(robots, (0, 0, 0, lacking))
    robots = robots * robots[..., :1]
    distance = robots[..., 1:3].square().sum(dim=-1) + _FAR * (1.0 - robots[..., 0])
    places = distance.topk(NUM_NEAREST, dim=-1, largest=False).indices
    places = places.unsqueeze(-1).expand(*places.shape, robots.shape[-1])
    return robots.gather(-2, places).flatten(-2)


def _slices_between(size: int, blocks: Sequence[EntityBlock]) -> list[slice]:
    """Return a vector's slices outside all blocks, given its ``size``."""
    slices = []
    start = 0
    for block in sorted(blocks, key=lambda block: block.start):
        slices.append(slice(start, block.start))
        start = block.end
    slices.append(slice(start, size))
    return [part for part in slices if part.stop > part.start]
