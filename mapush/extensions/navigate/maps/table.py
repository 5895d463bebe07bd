"""A run's maps as tensors, and their obstacles' shapes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mapush.extensions.navigate.maps.arena_map import ArenaMap
from mqe.config import ConfigError
from mqe.world.geometry import rotate_2d
from mqe.world.obstacles import PARKED_BELOW, PARKED_HEIGHT, ObstacleCfg

MOST_SLOTS = 256  # obstacles of a scene


def slots_of(maps: Iterable[ArenaMap]) -> tuple[ObstacleCfg, ...]:
    """Return a scene's slots, with room for every map's obstacles.

    Raise ConfigError for more than ``MOST_SLOTS``: worlds would be slow, and fill the memory.
    """
    slot_counts: Counter[ObstacleCfg] = Counter()
    for arena_map in maps:
        slot_counts |= Counter(placed.cfg for placed in arena_map.obstacles)
    if slot_counts.total() > MOST_SLOTS:
        raise ConfigError(
            f"task.map: the maps have obstacles of {len(slot_counts)} sizes, and a world would "
            f"need {slot_counts.total()} to show any of them; {MOST_SLOTS} at most: repeat sizes, "
            "or take fewer maps"
        )
    return tuple(slot_counts.elements())


class MapTable(NamedTuple):
    """All maps in a run as tensors on one device: L maps, K slots for obstacles."""

    start: Tensor  # (L, 2) [m]
    start_yaw: Tensor  # (L,) [rad] of the object; NaN: drawn
    is_behind: Tensor  # (L,) bool: robots start in a row behind the object
    goal: Tensor  # (L, 2) [m]
    obstacle_pos: Tensor  # (L, K, 3) [m]
    obstacle_yaw: Tensor  # (L, K) [rad]

    @classmethod
    def of(
        cls, maps: Sequence[ArenaMap], slots: Sequence[ObstacleCfg], device: torch.device | str
    ) -> MapTable:
        """Assign each map's obstacles to slots of equal shape. Move unused slots below the
        floor.
        """
        pos = torch.zeros(len(maps), len(slots), 3)
        pos[..., 2] = PARKED_HEIGHT
        yaw = torch.zeros(pos.shape[:2])
        for row, arena_map in enumerate(maps):
            free = list(range(len(slots)))
            for placed in arena_map.obstacles:
                slot = next(k for k in free if slots[k] == placed.cfg)
                free.remove(slot)
                pos[row, slot] = torch.tensor((placed.x, placed.y, placed.cfg.height / 2))
                yaw[row, slot] = placed.yaw
        start_yaw = [
            math.nan if arena_map.start_yaw is None else arena_map.start_yaw for arena_map in maps
        ]
        return cls(
            start=torch.tensor([arena_map.start for arena_map in maps], device=device),
            start_yaw=torch.tensor(start_yaw, device=device),
            is_behind=torch.tensor(
                [arena_map.spawn == "behind" for arena_map in maps], device=device
            ),
            goal=torch.tensor([arena_map.goal for arena_map in maps], device=device),
            obstacle_pos=pos.to(device),
            obstacle_yaw=yaw.to(device),
        )

    def rows(self, index: Tensor) -> MapTable:
        """Return the table for the maps ``index`` (M,)."""
        return MapTable(*(column[index] for column in self))


class ObstacleShapes:
    """Shapes in K slots within an arena, and distances to them and to the walls."""

    def __init__(
        self, arena: tuple[float, float], slots: Sequence[ObstacleCfg], device: torch.device | str
    ) -> None:
        """Take an arena's lengths along x and y [m], and a scene's slots."""
        self.arena = arena
        self.slots = tuple(slots)
        half_sizes = [slot.half_size for slot in slots]
        self.half_size = torch.tensor(half_sizes, device=device).view(-1, 2)  # (K, 2) [m]

    def clearance(self, points: Tensor, pos: Tensor, yaw: Tensor) -> Tensor:
        """Return the distance (M, P) [m] from points (P, 2) or (M, P, 2) to the nearest wall, or
        obstacle at ``pos`` (M, K, 3) and ``yaw`` (M, K).

        The distance is negative inside an obstacle and beyond the walls.
        """
        x, y = points.abs().unbind(dim=-1)
        to_wall = torch.minimum(self.arena[0] / 2 - x, self.arena[1] / 2 - y)
        nearest = to_wall.expand(len(pos), -1)
        for k, slot in enumerate(self.slots):
            offset = points - pos[:, k, None, :2]
            if slot.shape == "post":
                distance = offset.norm(dim=-1) - self.half_size[k, 0]
            else:
                beyond = rotate_2d(offset, -yaw[:, k, None]).abs() - self.half_size[k]
                outside = beyond.clamp(min=0.0).norm(dim=-1)
                distance = outside + beyond.amax(dim=-1).clamp(max=0.0)
            is_parked = pos[:, k, 2:] < PARKED_BELOW
            nearest = torch.minimum(nearest, distance.masked_fill(is_parked, torch.inf))
        return nearest
