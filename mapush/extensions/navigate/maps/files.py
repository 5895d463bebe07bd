"""Maps from files: lists of boxes and posts, or a picture.

In a picture (.png) dark pixels are walls, green ones the start and red ones the goal. x points
right, y up. Transparent pixels are white.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mapush.extensions.navigate.maps.arena_map import (
    HEIGHT,
    MOST_OBSTACLES,
    ArenaMap,
    Placed,
    check_arena,
)
from mqe.config import ConfigError, build, option, parse_yaml, read_text
from mqe.world.obstacles import ObstacleCfg

SUFFIXES = (".json", ".yaml", ".yml", ".png")
MOST_MAPS = 10_000  # of a run
_DARK = 80  # of 255 in every colour: a wall
_STRONG = 150  # of 255 in one colour, with the others below _DARK: start or goal
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


def read_maps(path: Path, meters_per_pixel: float) -> list[ArenaMap]:
    """Read a file's maps. Raise ConfigError if it has none."""
    try:
        if path.suffix == ".png":
            return [_read_picture(path, meters_per_pixel)]
        return _read_list(path)
    except OSError as error:
        message = f"{error.strerror or 'it cannot be read'}; name another file"
        raise ConfigError(f"task.map: {path}: {message}") from None
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


def _read_picture(path: Path, meters_per_pixel: float) -> ArenaMap:
    """Read a picture's map. Raise ConfigError if it shows none."""
    pixels = _pixels(path, meters_per_pixel)
    red, green, blue = (pixels[..., k] for k in range(3))
    is_wall = pixels.max(axis=-1) < _DARK
    is_start = (green > _STRONG) & (red < _DARK) & (blue < _DARK)
    is_goal = (red > _STRONG) & (green < _DARK) & (blue < _DARK)
    height, width = is_wall.shape

    def position_of(row: float, column: float) -> tuple[float, float]:
        x = (column - 0.5 * width) * meters_per_pixel
        return x, (0.5 * height - row) * meters_per_pixel

    ends = []
    for mask, color in ((is_start, "green, the start"), (is_goal, "red, the goal")):
        rows, columns = np.nonzero(mask)
        if not len(rows):
            raise ConfigError(f"no pixel is {color}; draw a spot of this colour")
        ends.append(position_of(float(rows.mean()) + 0.5, float(columns.mean()) + 0.5))
    obstacles = []
    for top, left, bottom, right in _rectangles(is_wall):
        x, y = position_of(0.5 * (top + bottom), 0.5 * (left + right))
        size = ((right - left) * meters_per_pixel, (bottom - top) * meters_per_pixel, HEIGHT)
        obstacles.append(Placed(ObstacleCfg("box", size), x, y))
    arena = (width * meters_per_pixel, height * meters_per_pixel)
    return ArenaMap(arena, ends[0], ends[1], tuple(obstacles))


def _pixels(path: Path, meters_per_pixel: float) -> NDArray[np.uint8]:
    """Return a picture's pixels (H, W, 3). Its size is checked before it is decoded."""
    if not path.is_file():
        raise ConfigError("there is no such file; name another")
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            width, height = picture.size
            check_arena((width * meters_per_pixel, height * meters_per_pixel), "the picture")
            colors = picture.convert("RGBA")
    except ConfigError:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise ConfigError("it is no picture that can be read; save it anew") from None
    white = Image.new("RGBA", colors.size, "white")
    return np.asarray(Image.alpha_composite(white, colors).convert("RGB"))


def _rectangles(is_wall: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """Return rectangles (top, left, bottom, right) over a mask (H, W): runs in a row, joined with
    equal runs below.

    Raise ConfigError if there are too many.
    """
    open_runs: dict[tuple[int, int], int] = {}  # first row by (left, right)
    rectangles = []
    height = len(is_wall)
    for row in range(height + 1):
        line = is_wall[row] if row < height else np.zeros(is_wall.shape[1], dtype=bool)
        edges = np.flatnonzero(np.diff(np.pad(line.astype(int), 1)))
        runs = set(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
        for run in open_runs.keys() - runs:
            rectangles.append((open_runs.pop(run), run[0], row, run[1]))
        for run in runs:
            open_runs.setdefault(run, row)
        if len(rectangles) + len(open_runs) > MOST_OBSTACLES:
            raise ConfigError(
                f"its walls are more than {MOST_OBSTACLES} rectangles; draw straight "
                "walls along the picture's sides, without soft edges"
            )
    return sorted(rectangles)
