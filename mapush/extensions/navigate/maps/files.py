"""Maps from files: lists of boxes and posts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mapush.extensions.navigate.maps.arena_map import (
    HEIGHT,
    ArenaMap,
    Placed,
)
from mqe.config import ConfigError, build, option, parse_yaml, read_text
from mqe.world.obstacles import ObstacleCfg

SUFFIXES = (".json", ".yaml", ".yml")
MOST_MAPS = 10_000  # of a run
_FAR = 1e3  # [m] largest coordinate


@dataclass(frozen=True)
class _ObstacleEntry:
    """An obstacle in a file. Lengths are in metres."""

    at: tuple[float, float] = option((0.0, 0.0), min=-_FAR, max=_FAR)
    box: tuple[float, float] | None = option(None, min=0.02, max=_FAR)
    post: float | None = option(None, min=0.02, max=_FAR)
    yaw: float = option(0.0, min=-_FAR, max=_FAR)
    height: float = option(HEIGHT, min=0.02, max=_FAR)
    to: tuple[float, float] | None = option(None, min=-_FAR, max=_FAR)
    speed: float | None = option(None, min=0.0, max=_FAR)


@dataclass(frozen=True)
class _MapEntry:
    """A map in a file. Lengths are in metres."""

    start: tuple[float, float]
    goal: tuple[float, float]
    arena: tuple[float, float]
    obstacles: tuple[Any, ...] = ()
    start_yaw: float | None = option(None, min=-_FAR, max=_FAR)
    spawn: str = option("ring", choices=("ring", "behind"))
    goal_to: tuple[float, float] | None = option(None, min=-_FAR, max=_FAR)
    goal_speed: float | None = option(None, min=0.0, max=_FAR)


def read_maps(path: Path) -> list[ArenaMap]:
    """Read a file's maps. Raise ConfigError for a file without maps."""
    try:
        return _read_list(path)
    except OSError as error:
        message = f"{error.strerror or 'it cannot be read'}; name another file"
        raise ConfigError(f"task.map: {path}: {message}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"task.map: {path}: it is no text; name another file") from None
    except ConfigError as error:
        raise ConfigError(f"task.map: {path}: {error}") from None


def _read_list(path: Path) -> list[ArenaMap]:
    content = parse_yaml(read_text(path), "it")
    maps = content.get("maps") if isinstance(content, Mapping) else None
    if not isinstance(maps, list) or not 0 < len(maps) <= MOST_MAPS:
        raise ConfigError(f"must have the key maps with 1 to {MOST_MAPS:,} maps")
    shared = {"arena": content["arena"]} if "arena" in content else {}
    return [_read_map(values, shared, f"map {k}") for k, values in enumerate(maps)]


def _read_map(values: Any, shared: Mapping[str, Any], where: str) -> ArenaMap:
    """Return the map from ``values``, laid over the file's common values ``shared``."""
    entry = build(_MapEntry, {**shared, **values} if isinstance(values, dict) else values, where)
    if (entry.goal_to is None) != (entry.goal_speed is None):
        raise ConfigError(f"{where}: a goal that moves has both goal_to: [x, y] and goal_speed")
    obstacles = [
        _read_obstacle(obstacle, f"{where}: obstacle {k}")
        for k, obstacle in enumerate(entry.obstacles)
    ]
    return ArenaMap(
        arena=entry.arena,
        start=entry.start,
        goal=entry.goal,
        obstacles=tuple(obstacles),
        start_yaw=entry.start_yaw,
        spawn=entry.spawn,
        goal_to=entry.goal_to,
        goal_speed=entry.goal_speed or 0.0,
    )


def _read_obstacle(values: Any, where: str) -> Placed:
    entry = build(_ObstacleEntry, values, where)
    is_moving = entry.to is not None
    if (entry.box is None) == (entry.post is None) or "at" not in values:
        raise ConfigError(
            f"{where}: must be like {{box: [length, width], at: [x, y], yaw: 0.0}} or "
            f"{{post: radius, at: [x, y]}}, with height if it is not {HEIGHT:g}"
        )
    if is_moving != (entry.speed is not None):
        raise ConfigError(f"{where}: an obstacle that moves has both to: [x, y] and speed")
    if entry.box is not None:
        shape = ObstacleCfg("box", (*entry.box, entry.height), is_moving)
    else:
        assert entry.post is not None
        shape = ObstacleCfg("post", (entry.post, entry.height), is_moving)
    return Placed(shape, *entry.at, entry.yaw, entry.to, entry.speed or 0.0)
