"""One map: an arena with obstacles, the object's initial position and its goal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from mqe.config import ConfigError
from mqe.world.obstacles import ObstacleCfg
from mqe.world.scene import ARENA_HALF_SIZE

HEIGHT = 0.6  # [m] of obstacles
SPEEDS = (0.02, 1.0)  # [m/s] of moving obstacles and goals
ROBOT_ROOM = 0.6  # [m] beyond the object that a robot needs where it pushes
MOST_OBSTACLES = 64  # in one map
_ARENA_MIN = 3.0  # [m]
_ROUNDING = 1e-6  # [m]
_SWEPT = 0.1  # [m] between two checked points of the way of a moving obstacle or goal


class Placed(NamedTuple):
    """An obstacle and its pose."""

    cfg: ObstacleCfg
    x: float  # [m]
    y: float  # [m]
    yaw: float = 0.0  # [rad]
    # Where it moves to and back from, forever, at ``speed`` [m/s]; None: it stands still.
    to: tuple[float, float] | None = None  # [m]
    speed: float = 0.0


@dataclass(frozen=True)
class ArenaMap:
    """One map. Lengths are in metres, the arena's middle is the origin."""

    arena: tuple[float, float]
    start: tuple[float, float]
    goal: tuple[float, float]
    obstacles: tuple[Placed, ...] = ()
    start_yaw: float | None = None  # [rad] of the object; None: drawn
    spawn: str = "ring"  # robots around the object, or "behind" it in a row
    # Where the goal moves to and back from, forever, at ``goal_speed`` [m/s]; None: it stays.
    goal_to: tuple[float, float] | None = None  # [m]
    goal_speed: float = 0.0


class Room(NamedTuple):
    """Room for an object and its team."""

    reach: float  # [m] from the object's origin to its furthest corner
    spawn: float  # [m] from the object's start that its robots take up


def check_arena(arena: tuple[float, float], where: str) -> None:
    """Raise ConfigError for a too small or too large arena."""
    if max(arena) / 2 > ARENA_HALF_SIZE or min(arena) / 2 < _ARENA_MIN / 2:
        raise ConfigError(
            f"{where}: the arena is {arena[0]:g} x {arena[1]:g} m; each side must be from "
            f"{_ARENA_MIN:g} to {2 * ARENA_HALF_SIZE:g} m"
        )


def check_map(arena_map: ArenaMap, room: Room, where: str) -> None:
    """Raise ConfigError for a map without room for the object."""
    check_arena(arena_map.arena, where)
    half_x, half_y = (length / 2 for length in arena_map.arena)
    if len(arena_map.obstacles) > MOST_OBSTACLES:
        raise ConfigError(
            f"{where}: {len(arena_map.obstacles)} obstacles; {MOST_OBSTACLES} at most: join boxes "
            "that touch"
        )
    is_behind = arena_map.spawn == "behind"
    spawn = room.reach + 0.1 if is_behind else room.spawn
    ends = [("start", arena_map.start, spawn)]
    ends += [("goal", position, room.reach) for position in goal_way(arena_map)]
    if arena_map.goal_to is not None and not SPEEDS[0] <= arena_map.goal_speed <= SPEEDS[1]:
        raise ConfigError(
            f"{where}: the goal has the speed {arena_map.goal_speed:g} m/s; take one from "
            f"{SPEEDS[0]:g} to {SPEEDS[1]:g} m/s"
        )
    for name, position, needed in ends:
        to_wall = min(half_x - abs(position[0]), half_y - abs(position[1]))
        if to_wall < needed - _ROUNDING:
            raise ConfigError(
                f"{where}: the {name} {_point(position)} is {max(to_wall, 0.0):.2f} m from the "
                f"wall of the arena, and the object needs {needed:.2f} m; move it inwards, or make "
                "the arena larger"
            )
        for placed in arena_map.obstacles:
            gap = min(distance_to(obstacle, position) for obstacle in swept(placed))
            if gap < needed - _ROUNDING:
                meets = "overlaps with" if placed.to is None else "is swept by"
                needing = "object" if name == "goal" else "object with its robots"
                raise ConfigError(
                    f"{where}: the {name} {_point(position)} {meets} the {placed.cfg.shape} at "
                    f"{_point((placed.x, placed.y))}: {gap:.2f} m between them, and the {needing} "
                    f"needs {needed:.2f} m; move one of them"
                )
    for placed in arena_map.obstacles:
        if placed.to is not None:
            _check_sweep(arena_map, placed, where)


def _check_sweep(arena_map: ArenaMap, mover: Placed, where: str) -> None:
    """Raise ConfigError if robots have no room beside a moving obstacle's path."""
    name = f"{where}: the moving {mover.cfg.shape} at {_point((mover.x, mover.y))}"
    if not SPEEDS[0] <= mover.speed <= SPEEDS[1]:
        raise ConfigError(
            f"{name} has the speed {mover.speed:g} m/s; take one from {SPEEDS[0]:g} to "
            f"{SPEEDS[1]:g} m/s"
        )
    half_size = mover.cfg.half_size
    reach = half_size[0] if mover.cfg.shape == "post" else math.hypot(*half_size)
    half_x, half_y = (length / 2 for length in arena_map.arena)
    places = [(obstacle.x, obstacle.y) for obstacle in swept(mover)]
    gaps = [("the wall", min(min(half_x - abs(x), half_y - abs(y)) for x, y in places))]
    for other in arena_map.obstacles:
        if other is not mover:
            gap = min(
                distance_to(obstacle, position) for obstacle in swept(other) for position in places
            )
            gaps.append((f"the {other.cfg.shape} at {_point((other.x, other.y))}", gap))
    for what, gap in gaps:
        if gap - reach < ROBOT_ROOM - _ROUNDING:
            raise ConfigError(
                f"{name} comes within {max(gap - reach, 0.0):.2f} m of {what}, and would crush "
                f"robots in less than {ROBOT_ROOM:g} m; shorten its way or move one of them"
            )


def swept(placed: Placed) -> list[Placed]:
    """Return copies of an obstacle along its path, at most 0.1 m apart.

    A fixed obstacle has one copy.
    """
    if placed.to is None:
        return [placed]
    way = _points((placed.x, placed.y), placed.to)
    return [placed._replace(x=x, y=y, to=None) for x, y in way]


def goal_way(arena_map: ArenaMap) -> list[tuple[float, float]]:
    """Return points on the goal's path, at most 0.1 m apart. A goal at rest has one point."""
    if arena_map.goal_to is None:
        return [arena_map.goal]
    return _points(arena_map.goal, arena_map.goal_to)


def _points(start: tuple[float, float], end: tuple[float, float]) -> list[tuple[float, float]]:
    """Return points from ``start`` to ``end``, at most 0.1 m apart."""
    count = max(2, 1 + math.ceil(math.dist(start, end) / _SWEPT))
    shares = [k / (count - 1) for k in range(count)]
    return [
        (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]))
        for share in shares
    ]


def distance_to(placed: Placed, point: tuple[float, float]) -> float:
    """Return the distance [m] from a point to an obstacle, 0 inside."""
    dx = point[0] - placed.x
    dy = point[1] - placed.y
    if placed.cfg.shape == "post":
        return max(0.0, math.hypot(dx, dy) - placed.cfg.size[0])
    cos = math.cos(placed.yaw)
    sin = math.sin(placed.yaw)
    half_x, half_y = placed.cfg.half_size
    beyond_x = max(0.0, abs(cos * dx + sin * dy) - half_x)
    beyond_y = max(0.0, abs(cos * dy - sin * dx) - half_y)
    return math.hypot(beyond_x, beyond_y)


def _point(position: tuple[float, float]) -> str:
    return f"({position[0]:.2f}, {position[1]:.2f})"
