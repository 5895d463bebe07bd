"""Maps from files: lists of boxes and posts, or a picture.

In a picture (.png) dark pixels are walls, green ones are where the object starts and red ones where
it goes; x is to the right, y up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray

from mapush.extensions.navigate.maps.arena_map import HEIGHT, ArenaMap, Placed
from mqe.config import ConfigError, parse_yaml, read_text, unknown
from mqe.world.obstacles import ObstacleCfg

SUFFIXES = (".json", ".yaml", ".yml", ".png")
_DARK = 80  # of 255 in every colour: a wall
_DIGITS = 6  # of metres and radians in a file: a micrometre
_STRONG = 150  # of 255 in one colour, with the others below _DARK: start or goal


def read_maps(path: Path, meters_per_pixel: float) -> list[ArenaMap]:
    """Read the maps of a file; raise ConfigError for one that is none."""
    where = f"task.map: {path}"
    if path.suffix == ".png":
        return [_read_picture(path, meters_per_pixel, where)]
    try:
        content = parse_yaml(read_text(path), str(path))
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}; name another file") from None
    maps = content.get("maps") if isinstance(content, Mapping) else None
    if not isinstance(maps, list) or not maps:
        raise ConfigError(f"{where}: must have the key maps with at least one map")
    arena = content.get("arena")
    return [_read_map(each, arena, f"{where}: map {k}") for k, each in enumerate(maps)]


def to_json(maps: Sequence[ArenaMap]) -> str:
    """Return the text of a .json file of ``maps``, one a line, which ``read_maps`` reads."""
    lines = ",\n".join(json.dumps(_rounded(_written(each))) for each in maps)
    return f'{{"maps": [\n{lines}\n]}}\n'


def _written(each: ArenaMap) -> dict[str, Any]:
    values: dict[str, Any] = {"arena": each.arena, "start": each.start, "goal": each.goal}
    if each.start_yaw is not None:
        values["start_yaw"] = each.start_yaw
    if each.spawn != "ring":
        values["spawn"] = each.spawn
    if each.goal_to is not None:
        values |= {"goal_to": each.goal_to, "goal_speed": each.goal_speed}
    obstacles = []
    for placed in each.obstacles:
        *size, height = placed.cfg.size
        length = size[0] if placed.cfg.shape == "post" else size
        obstacle = {placed.cfg.shape: length, "at": (placed.x, placed.y), "yaw": placed.yaw}
        if height != HEIGHT:
            obstacle["height"] = height
        if placed.to is not None:
            obstacle |= {"to": placed.to, "speed": placed.speed}
        obstacles.append(obstacle)
    return values | {"obstacles": obstacles}


def _rounded(values: Any) -> Any:
    """Return nested values with their numbers rounded."""
    if isinstance(values, Mapping):
        return {key: _rounded(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_rounded(value) for value in values]
    return round(values, _DIGITS) if isinstance(values, float) else values


def _read_map(values: Any, arena: Any, where: str) -> ArenaMap:
    known = ("arena", "start", "goal", "obstacles", "start_yaw", "spawn", "goal_to", "goal_speed")
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: must be a section of keys: {', '.join(known)}")
    for key in values:
        if key not in known:
            raise ConfigError(f"{where}: {unknown('key', key, known)}")
    obstacles = values.get("obstacles") or []
    if not isinstance(obstacles, list):
        raise ConfigError(f"{where}: obstacles must be a list")
    spawn = values.get("spawn", "ring")
    if spawn not in ("ring", "behind"):
        raise ConfigError(f"{where}: {unknown('spawn', spawn, ('ring', 'behind'))}")
    if ("goal_to" in values) != ("goal_speed" in values):
        raise ConfigError(f"{where}: a goal that moves has both goal_to: [x, y] and goal_speed")
    goal_to = None
    goal_speed = 0.0
    if "goal_to" in values:
        goal_to = _numbers(values["goal_to"], 2, f"{where}: goal_to")
        goal_speed = _numbers([values["goal_speed"]], 1, f"{where}: goal_speed")[0]
    yaw = values.get("start_yaw")
    placed = [_read_placed(each, f"{where}: obstacle {k}") for k, each in enumerate(obstacles)]
    return ArenaMap(
        arena=_numbers(values.get("arena", arena), 2, f"{where}: arena"),
        start=_numbers(values.get("start"), 2, f"{where}: start"),
        goal=_numbers(values.get("goal"), 2, f"{where}: goal"),
        obstacles=tuple(placed),
        start_yaw=None if yaw is None else _numbers([yaw], 1, f"{where}: start_yaw")[0],
        spawn=spawn,
        goal_to=goal_to,
        goal_speed=goal_speed,
    )


def _read_placed(values: Any, where: str) -> Placed:
    is_section = isinstance(values, Mapping)
    shapes = [shape for shape in ("box", "post") if is_section and shape in values]
    others = {"at", "yaw", "height", "to", "speed"}
    is_moving = is_section and "to" in values
    is_whole = len(shapes) == 1 and "at" in values and is_moving == ("speed" in values)
    if not is_whole or set(values) - {*shapes, *others}:
        raise ConfigError(
            f"{where}: must be like {{box: [length, width], at: [x, y], yaw: 0.0}} or "
            "{post: radius, at: [x, y]}, with height if it is not 0.6, and with to: [x, y] and "
            "speed if it moves"
        )
    height = _numbers([values.get("height", HEIGHT)], 1, f"{where}: height")[0]
    if shapes[0] == "box":
        size = _numbers(values["box"], 2, f"{where}: box")
    else:
        size = _numbers([values["post"]], 1, f"{where}: post")
    if min(*size, height) < 0.02:
        raise ConfigError(f"{where}: every length must be at least 0.02 m")
    x, y = _numbers(values["at"], 2, f"{where}: at")
    yaw = _numbers([values.get("yaw", 0.0)], 1, f"{where}: yaw")[0]
    placed = Placed(ObstacleCfg(shapes[0], (*size, height), is_moving), x, y, yaw)
    if not is_moving:
        return placed
    to = _numbers(values["to"], 2, f"{where}: to")
    speed = _numbers([values["speed"]], 1, f"{where}: speed")[0]
    return placed._replace(to=to, speed=speed)


def _numbers(values: Any, count: int, where: str) -> Any:
    is_list = isinstance(values, (list, tuple)) and len(values) == count
    if not is_list or not all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e3
        for value in values
    ):
        raise ConfigError(f"{where}: must be {count} number(s) [m, rad], not {values!r}")
    return tuple(float(value) for value in values)


def _read_picture(path: Path, meters_per_pixel: float, where: str) -> ArenaMap:
    """Read the map of a picture; raise ConfigError for one that is none."""
    pixels = _pixels(path, where).astype(int)
    red, green, blue = (pixels[..., k] for k in range(3))
    is_wall = pixels.max(axis=-1) < _DARK
    is_start = (green > _STRONG) & (red < _DARK) & (blue < _DARK)
    is_goal = (red > _STRONG) & (green < _DARK) & (blue < _DARK)
    height, width = is_wall.shape

    def place(row: float, column: float) -> tuple[float, float]:
        x = (column - 0.5 * width) * meters_per_pixel
        return x, (0.5 * height - row) * meters_per_pixel

    ends = []
    for mask, color in ((is_start, "green, the start"), (is_goal, "red, the goal")):
        rows, columns = np.nonzero(mask)
        if not len(rows):
            raise ConfigError(f"{where}: no pixel is {color}; draw a spot of this colour")
        ends.append(place(float(rows.mean()) + 0.5, float(columns.mean()) + 0.5))
    obstacles = []
    for top, left, bottom, right in _rectangles(is_wall):
        x, y = place(0.5 * (top + bottom), 0.5 * (left + right))
        size = ((right - left) * meters_per_pixel, (bottom - top) * meters_per_pixel, HEIGHT)
        obstacles.append(Placed(ObstacleCfg("box", size), x, y))
    arena = (width * meters_per_pixel, height * meters_per_pixel)
    return ArenaMap(arena, ends[0], ends[1], tuple(obstacles))


def _pixels(path: Path, where: str) -> NDArray[np.uint8]:
    """Return the pixels (H, W, 3) of a picture."""
    if not path.is_file():
        raise ConfigError(f"{where}: there is no such file; name another")
    try:
        frames = imageio_ffmpeg.read_frames(str(path))
        width, height = next(frames)["size"]  # pyright: ignore[reportArgumentType, reportCallIssue]
        data = next(frames)
        frames.close()
    except (OSError, RuntimeError, StopIteration):
        raise ConfigError(f"{where}: it is no picture that can be read; save it anew") from None
    return np.frombuffer(data, dtype=np.uint8).reshape(height, width, 3)  # pyright: ignore[reportArgumentType, reportCallIssue]


def _rectangles(is_wall: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """Return rectangles (top, left, bottom, right) that cover a mask (H, W): runs of a row, joined
    with those below that have the same ends.
    """
    open_runs: dict[tuple[int, int], int] = {}  # first row by (left, right)
    found = []
    height = len(is_wall)
    for row in range(height + 1):
        line = is_wall[row] if row < height else np.zeros(is_wall.shape[1], dtype=bool)
        edges = np.flatnonzero(np.diff(np.pad(line.astype(int), 1)))
        runs = set(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
        for run in [run for run in open_runs if run not in runs]:
            found.append((open_runs.pop(run), run[0], row, run[1]))
        for run in runs:
            open_runs.setdefault(run, row)
    return sorted(found)
