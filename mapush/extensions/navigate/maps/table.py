"""A run's maps as tensors, and their obstacles' shapes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mapush.extensions.navigate.maps.arena_map import ArenaMap
from mqe.config import ConfigError
from mqe.world.geometry import axes_along, in_frame
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
    goal_way: Tensor  # (L, 2) [m] from one end of the goal's line to the other
    goal_speed: Tensor  # (L,) [m/s]
    obstacle_pos: Tensor  # (L, K, 3) [m]
    obstacle_yaw: Tensor  # (L, K) [rad]
    obstacle_way: Tensor  # (L, K, 2) [m]
    obstacle_speed: Tensor  # (L, K) [m/s]
    has_movers: bool
    has_moving_goals: bool

    @classmethod
    def of(
        cls, maps: Sequence[ArenaMap], slots: Sequence[ObstacleCfg], device: torch.device | str
    ) -> MapTable:
        """Assign each map's obstacles to slots of equal shape. Move unused slots below the
        floor.
        """
        pos = np.zeros((len(maps), len(slots), 3), dtype=np.float32)
        pos[..., 2] = PARKED_HEIGHT
        yaw = np.zeros(pos.shape[:2], dtype=np.float32)
        way = np.zeros((*pos.shape[:2], 2), dtype=np.float32)
        speed = np.zeros_like(yaw)
        for row, arena_map in enumerate(maps):
            free = list(range(len(slots)))
            for placed in arena_map.obstacles:
                slot = next(k for k in free if slots[k] == placed.cfg)
                free.remove(slot)
                pos[row, slot] = (placed.x, placed.y, placed.cfg.height / 2)
                yaw[row, slot] = placed.yaw
                if placed.to is not None:
                    way[row, slot] = np.array(placed.to, dtype=np.float32) - pos[row, slot, :2]
                    speed[row, slot] = placed.speed

        def column(values: Any) -> Tensor:
            return torch.tensor(values, device=device)

        goal = column([arena_map.goal for arena_map in maps])
        goal_to = column([arena_map.goal_to or arena_map.goal for arena_map in maps])
        yaws = [
            math.nan if arena_map.start_yaw is None else arena_map.start_yaw for arena_map in maps
        ]
        return cls(
            start=column([arena_map.start for arena_map in maps]),
            start_yaw=column(yaws),
            is_behind=column([arena_map.spawn == "behind" for arena_map in maps]),
            goal=goal,
            goal_way=goal_to - goal,
            goal_speed=column([arena_map.goal_speed for arena_map in maps]),
            obstacle_pos=column(pos),
            obstacle_yaw=column(yaw),
            obstacle_way=column(way),
            obstacle_speed=column(speed),
            has_movers=any(slot.moves for slot in slots),
            has_moving_goals=any(arena_map.goal_to is not None for arena_map in maps),
        )

    def rows(self, index: Tensor) -> MapTable:
        """Return the table for the maps ``index`` (M,)."""
        columns = {
            name: values[index]
            for name, values in self._asdict().items()
            if isinstance(values, Tensor)
        }
        return self._replace(**columns)

    def obstacles_at(self, index: Tensor, time: Tensor) -> Tensor:
        """Return the obstacles' positions (N, K, 3) [m] on maps ``index`` (N,) at an episode's
        ``time`` (N,) [s].
        """
        pos = self.obstacle_pos[index]
        if not self.has_movers:
            return pos
        distance = self.obstacle_speed[index] * time.unsqueeze(1)
        return pos + torch.nn.functional.pad(
            _to_and_fro(self.obstacle_way[index], distance), (0, 1)
        )

    def goal_at(self, index: Tensor, time: Tensor) -> Tensor:
        """Return the goals (N, 2) [m] on maps ``index`` (N,) at an episode's ``time`` (N,) [s]."""
        goal = self.goal[index]
        if not self.has_moving_goals:
            return goal
        return goal + _to_and_fro(self.goal_way[index], self.goal_speed[index] * time)


def _to_and_fro(way: Tensor, distance: Tensor) -> Tensor:
    """Return the position (..., 2) [m] on a line ``way`` (..., 2) after ``distance`` (...) [m] to
    its end and back, repeatedly.
    """
    length = way.norm(dim=-1)
    gone = torch.remainder(distance, (2.0 * length).clamp(min=1e-6))
    along = length - (length - gone).abs()
    return along.unsqueeze(-1) * (way / length.clamp(min=1e-6).unsqueeze(-1))


class ObstacleShapes:
    """Shapes in K slots, and distances to them."""

    def __init__(self, slots: Sequence[ObstacleCfg], device: torch.device | str) -> None:
        """Take a scene's slots."""
        self.slots = tuple(slots)
        half_sizes = [slot.half_size for slot in slots]
        self.half_size = torch.tensor(half_sizes, device=device).view(-1, 2)  # (K, 2) [m]
        self._is_post = [slot.shape == "post" for slot in slots]
        is_post = torch.tensor(self._is_post, dtype=torch.bool)
        self._boxes = (~is_post).nonzero().flatten().to(device)
        self._posts = is_post.nonzero().flatten().to(device)

    def clearance(self, points: Tensor, pos: Tensor, yaw: Tensor) -> Tensor:
        """Return the distance (M, P) [m] from points (P, 2) or (M, P, 2) to the nearest obstacle at
        ``pos`` (M, K, 3) and ``yaw`` (M, K).

        The distance is negative inside an obstacle, and 100 without obstacles.
        """
        nearest = points.new_full((len(pos), points.shape[-2]), 100.0)
        for k, is_post in enumerate(self._is_post):
            offset = points - pos[:, k, None, :2]
            if is_post:
                distance = offset.norm(dim=-1) - self.half_size[k, 0]
            else:
                cos = yaw[:, k, None].cos()
                sin = yaw[:, k, None].sin()
                x, y = offset.unbind(dim=-1)
                local = torch.stack((cos * x + sin * y, cos * y - sin * x), dim=-1)
                beyond = local.abs() - self.half_size[k]
                outside = beyond.clamp(min=0.0).norm(dim=-1)
                distance = outside + beyond.amax(dim=-1).clamp(max=0.0)
            is_parked = pos[:, k, 2:] < PARKED_BELOW
            nearest = torch.minimum(nearest, distance.masked_fill(is_parked, 100.0))
        return nearest

    def cast(self, origin: Tensor, ray: Tensor, pos: Tensor, ahead: Tensor) -> Tensor:
        """Return the distance (M, P) [m] from ``origin`` (M, P, 2) along unit vectors ``ray`` (M,
        P, 2) to the first obstacle.

        Obstacles are at ``pos`` (M, K, 3) with x axes ``ahead`` (M, K, 2). The distance is 0 inside
        an obstacle, and infinite without obstacles.
        """
        offset = pos[:, None, :, :2] - origin.unsqueeze(2)  # (M, P, K, 2)
        ray = ray.unsqueeze(2)
        ahead = ahead.unsqueeze(1)
        nearest = torch.full_like(origin[..., 0], math.inf)
        for along, slots in ((_along_box, self._boxes), (_along_post, self._posts)):
            if len(slots) > 0:
                distance = along(
                    offset[:, :, slots], ray, ahead[:, :, slots], self.half_size[slots]
                )
                is_parked = pos[:, None, slots, 2] < PARKED_BELOW
                distance = distance.masked_fill(is_parked, math.inf)
                nearest = torch.minimum(nearest, distance.amin(dim=2))
        return nearest


def _along_box(offset: Tensor, ray: Tensor, ahead: Tensor, half_size: Tensor) -> Tensor:
    """Return the distance (...) [m] along ``ray`` (..., 2) to boxes with centres at ``offset``
    (..., 2) and x axes ``ahead`` (..., 2).
    """
    axes = axes_along(ahead)
    to_middle = in_frame(offset, axes)
    along = in_frame(ray, axes)
    along = torch.where(along.abs() < 1e-9, 1e-9, along)
    # Where the ray meets the lines of opposite sides.
    one = (to_middle - half_size) / along
    other = (to_middle + half_size) / along
    enters = torch.minimum(one, other).amax(dim=-1).clamp(min=0.0)
    leaves = torch.maximum(one, other).amin(dim=-1)
    return enters.masked_fill(leaves < enters, math.inf)


def _along_post(offset: Tensor, ray: Tensor, ahead: Tensor, half_size: Tensor) -> Tensor:
    """Return the distance (...) [m] along ``ray`` (..., 2) to posts of radius ``half_size`` (K, 2)
    at ``offset`` (..., 2).
    """
    radius = half_size[:, 0]
    nearest = (offset * ray).sum(dim=-1)
    beside = offset.square().sum(dim=-1) - nearest.square()
    half_chord = (radius.square() - beside).clamp(min=0.0).sqrt()
    misses = (beside > radius.square()) | (nearest + half_chord < 0.0)
    return (nearest - half_chord).clamp(min=0.0).masked_fill(misses, math.inf)
