"""One map: an arena with obstacles, the object's initial position and its goal."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mqe.config import ConfigError, build, option, parse_yaml, read_text, reason_of
from mqe.world.obstacles import ObstacleCfg
from mqe.world.scene import ARENA_HALF_SIZE

HEIGHT = 0.6  # [m] of obstacles
ROBOT_ROOM = 0.6  # [m] beyond the object that a robot needs where it pushes
SUFFIXES = (".json", ".yaml", ".yml")  # of files of maps
_ARENA_MIN = 3.0  # [m]
_FAR = 1e3  # [m] largest coordinate
_ROUNDING = 1e-6  # [m]

Point = tuple[float, float]


class Placed(NamedTuple):
    """An obstacle and its pose."""

    cfg: ObstacleCfg
    x: float  # [m]
    y: float  # [m]
    yaw: float = 0.0  # [rad]


@dataclass(frozen=True)
class ArenaMap:
    """One map. Lengths are in metres, the origin is the middle of the arena.

    ``obstacles`` is a list of ``ObstacleEntry`` mappings in a file, and of ``Placed`` once read.
    """

    arena: Point
    start: Point
    goal: Point
    obstacles: tuple[Any, ...] = ()
    start_yaw: float | None = option(
        None, "initial heading of the object [rad]; null: drawn", min=-_FAR, max=_FAR
    )
    spawn: str = option(
        "ring",
        "initial positions of the robots: around the object, or in a row behind it",
        choices=("ring", "behind"),
    )


@dataclass(frozen=True)
class ObstacleEntry:
    """An obstacle in a file, either a box or a post. Lengths are in metres."""

    at: Point
    box: Point | None = option(None, "full lengths along x and y [m]", min=0.02, max=_FAR)
    post: float | None = option(None, "radius [m]", min=0.02, max=_FAR)
    yaw: float = option(0.0, "heading of a box [rad]", min=-_FAR, max=_FAR)
    height: float = option(HEIGHT, "height [m]", min=0.02, max=_FAR)


class Room(NamedTuple):
    """Room for an object and its team."""

    reach: float  # [m] from the object's origin to its furthest corner
    spawn: float  # [m] from the object's start that its robots take up


def read_maps(path: Path) -> list[ArenaMap]:
    """Read a file's maps. Raise ConfigError for a file without maps."""
    try:
        content = parse_yaml(read_text(path), "it")
        maps = content.get("maps") if isinstance(content, Mapping) else None
        if not isinstance(maps, list) or not maps:
            raise ConfigError("must have the key maps with one map at least")
        shared = {"arena": content["arena"]} if "arena" in content else {}
        return [_read_map(values, shared, f"map {k}") for k, values in enumerate(maps)]
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"task.map: {path}: {reason_of(error)}") from None


def _read_map(values: Any, shared: Mapping[str, Any], where: str) -> ArenaMap:
    """Return the map from ``values``, laid over the file's common values ``shared``."""
    arena_map = build(ArenaMap, {**shared, **values} if isinstance(values, dict) else values, where)
    obstacles = []
    for k, obstacle in enumerate(arena_map.obstacles):
        entry = build(ObstacleEntry, obstacle, f"{where}: obstacle {k}")
        if (entry.box is None) == (entry.post is None):
            raise ConfigError(
                f"{where}: obstacle {k}: must be like {{box: [length, width], at: [x, y], "
                f"yaw: 0.0}} or {{post: radius, at: [x, y]}}, with height if it is not {HEIGHT:g}"
            )
        if entry.box is not None:
            shape = ObstacleCfg("box", (*entry.box, entry.height))
        else:
            assert entry.post is not None
            shape = ObstacleCfg("post", (entry.post, entry.height))
        obstacles.append(Placed(shape, *entry.at, entry.yaw))
    return replace(arena_map, obstacles=tuple(obstacles))


def check_map(arena_map: ArenaMap, room: Room, where: str) -> None:
    """Raise ConfigError for a map without room for the object."""
    half_x, half_y = (length / 2 for length in arena_map.arena)
    if min(half_x, half_y) < _ARENA_MIN / 2 or max(half_x, half_y) > ARENA_HALF_SIZE:
        raise ConfigError(
            f"{where}: the arena is {2 * half_x:g} x {2 * half_y:g} m; each side must be from "
            f"{_ARENA_MIN:g} to {2 * ARENA_HALF_SIZE:g} m"
        )
    spawn = room.reach + 0.1 if arena_map.spawn == "behind" else room.spawn
    ends = (("start", arena_map.start, spawn), ("goal", arena_map.goal, room.reach))
    for name, position, needed in ends:
        gaps = [("the wall", min(half_x - abs(position[0]), half_y - abs(position[1])))]
        for placed in arena_map.obstacles:
            obstacle = f"the {placed.cfg.shape} at ({placed.x:.2f}, {placed.y:.2f})"
            gaps.append((obstacle, distance_to(placed, position)))
        for what, gap in gaps:
            if gap < needed - _ROUNDING:
                raise ConfigError(
                    f"{where}: the {name} ({position[0]:.2f}, {position[1]:.2f}) is "
                    f"{max(gap, 0.0):.2f} m from {what}, and the object with its robots needs "
                    f"{needed:.2f} m; move one of them"
                )


def distance_to(placed: Placed, point: Point) -> float:
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
