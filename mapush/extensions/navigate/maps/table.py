"""All maps of a run as tensors, and the shapes of their obstacles."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from mapush.extensions.navigate.maps.arena_map import ArenaMap
from mqe.world.geometry import axes_along, in_frame
from mqe.world.obstacles import PARKED_BELOW, PARKED_HEIGHT, ObstacleCfg


def slots_of(maps: Iterable[ArenaMap]) -> tuple[ObstacleCfg, ...]:
    """Return the slots of obstacles in which every one of ``maps`` has room."""
    most: Counter[ObstacleCfg] = Counter()
    for each in maps:
        most |= Counter(placed.cfg for placed in each.obstacles)
    return tuple(most.elements())


class MapTable:
    """All maps of a run as tensors on one device; K slots of obstacles."""

    def __init__(
        self, maps: Sequence[ArenaMap], slots: Sequence[ObstacleCfg], device: torch.device | str
    ) -> None:
        """Put each map's obstacles into slots of their shapes; the others are parked."""
        pos = torch.zeros(len(maps), len(slots), 3)
        pos[..., 2] = PARKED_HEIGHT
        yaw = torch.zeros(len(maps), len(slots))
        way = torch.zeros(len(maps), len(slots), 2)
        speed = torch.zeros(len(maps), len(slots))
        for row, each in enumerate(maps):
            free = list(range(len(slots)))
            for placed in each.obstacles:
                slot = next(k for k in free if slots[k] == placed.cfg)
                free.remove(slot)
                pos[row, slot] = torch.tensor([placed.x, placed.y, placed.cfg.height / 2])
                yaw[row, slot] = placed.yaw
                if placed.to is not None:
                    way[row, slot] = torch.tensor(placed.to) - pos[row, slot, :2]
                    speed[row, slot] = placed.speed
        nan = math.nan
        yaws = [nan if each.start_yaw is None else each.start_yaw for each in maps]
        self.start = torch.tensor([each.start for each in maps], device=device)  # (L, 2)
        self.goal = torch.tensor([each.goal for each in maps], device=device)  # (L, 2)
        self.start_yaw = torch.tensor(yaws, device=device)  # (L,); NaN: drawn
        is_behind = [each.spawn == "behind" for each in maps]
        self.is_behind = torch.tensor(is_behind, device=device)  # (L,)
        self.obstacle_pos = pos.to(device)  # (L, K, 3)
        self.obstacle_yaw = yaw.to(device)  # (L, K)
        goal_to = [each.goal if each.goal_to is None else each.goal_to for each in maps]
        goal_way = torch.tensor(goal_to, device=device) - self.goal
        self.has_movers = any(slot.moves for slot in slots)
        self.has_moving_goals = any(each.goal_to is not None for each in maps)
        self._goal_length = goal_way.norm(dim=-1)  # (L,) [m] of the ways of moving goals
        self._goal_ahead = goal_way / self._goal_length.clamp(min=1e-6).unsqueeze(-1)  # (L, 2)
        self._goal_speed = torch.tensor([each.goal_speed for each in maps], device=device)
        self._length = way.norm(dim=-1).to(device)  # (L, K) [m] of the ways of moving obstacles
        self._ahead = way.to(device) / self._length.clamp(min=1e-6).unsqueeze(-1)  # (L, K, 2)
        self._speed = speed.to(device)  # (L, K) [m/s]

    def rows(self, index: Tensor) -> MapTable:
        """Return the table of the maps ``index`` (M,)."""
        table = copy.copy(self)
        for name, values in vars(self).items():
            if isinstance(values, Tensor):
                setattr(table, name, values[index])
        return table

    def obstacles_at(self, index: Tensor, time: Tensor) -> Tensor:
        """Return the positions (N, K, 3) [m] of the obstacles of maps ``index`` (N,) at ``time``
        (N,) [s] of an episode.
        """
        pos = self.obstacle_pos[index]
        if not self.has_movers:
            return pos
        along = _to_and_fro(self._length[index], self._speed[index] * time.unsqueeze(1))
        return pos + torch.nn.functional.pad(along.unsqueeze(-1) * self._ahead[index], (0, 1))

    def goal_at(self, index: Tensor, time: Tensor) -> Tensor:
        """Return the goals (N, 2) [m] of maps ``index`` (N,) at ``time`` (N,) [s] of an episode."""
        goal = self.goal[index]
        if not self.has_moving_goals:
            return goal
        along = _to_and_fro(self._goal_length[index], self._goal_speed[index] * time)
        return goal + along.unsqueeze(-1) * self._goal_ahead[index]


def _to_and_fro(length: Tensor, distance: Tensor) -> Tensor:
    """Return how far (...) [m] along a way of ``length`` something is that has gone ``distance`` to
    its end and back, again and again.
    """
    gone = torch.remainder(distance, (2.0 * length).clamp(min=1e-6))
    return length - (length - gone).abs()


class ObstacleShapes:
    """The shapes of K slots, and distances to them."""

    def __init__(self, slots: Sequence[ObstacleCfg], device: torch.device | str) -> None:
        """Take the slots of a scene."""
        self.slots = tuple(slots)
        half_sizes = [slot.half_size for slot in slots]
        self.half_size = torch.tensor(half_sizes, device=device).view(-1, 2)  # (K, 2) [m]
        self._is_post = [slot.shape == "post" for slot in slots]
        is_post = torch.tensor(self._is_post, dtype=torch.bool)
        self._boxes = (~is_post).nonzero().flatten().to(device)
        self._posts = is_post.nonzero().flatten().to(device)

    def clearance(self, points: Tensor, pos: Tensor, yaw: Tensor) -> Tensor:
        """Return the distance (M, P) [m] from points (P, 2) or (M, P, 2) to the nearest of the
        obstacles at ``pos`` (M, K, 3) and ``yaw`` (M, K); negative inside, 100 without any.
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
        P, 2) to the first of the obstacles at ``pos`` (M, K, 3), whose own x axes are ``ahead``
        (M, K, 2); 0 inside, infinite without any.
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
    """Return the distance (...) [m] along ``ray`` (..., 2) to boxes whose middles are at ``offset``
    (..., 2) and whose x axes are ``ahead`` (..., 2).
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
