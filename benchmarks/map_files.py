"""Map files, for play on a suite's maps in other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mapush.extensions.navigate.maps.arena_map import HEIGHT, ArenaMap

_DIGITS = 6  # of metres and radians in a file: a micrometre


def to_json(maps: Sequence[ArenaMap]) -> str:
    """Return ``maps`` as text for a .json file, one per line, in the format of ``read_maps``."""
    lines = ",\n".join(json.dumps(_rounded(_written(arena_map))) for arena_map in maps)
    return f'{{"maps": [\n{lines}\n]}}\n'


def _written(arena_map: ArenaMap) -> dict[str, Any]:
    values: dict[str, Any] = {
        "arena": arena_map.arena,
        "start": arena_map.start,
        "goal": arena_map.goal,
    }
    if arena_map.start_yaw is not None:
        values["start_yaw"] = arena_map.start_yaw
    if arena_map.spawn != "ring":
        values["spawn"] = arena_map.spawn
    obstacles = []
    for placed in arena_map.obstacles:
        *size, height = placed.cfg.size
        length = size[0] if placed.cfg.shape == "post" else size
        obstacle = {placed.cfg.shape: length, "at": (placed.x, placed.y), "yaw": placed.yaw}
        if height != HEIGHT:
            obstacle["height"] = height
        obstacles.append(obstacle)
    return values | {"obstacles": obstacles}


def _rounded(values: Any) -> Any:
    """Return nested values with their numbers rounded."""
    if isinstance(values, Mapping):
        return {key: _rounded(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_rounded(value) for value in values]
    return round(values, _DIGITS) if isinstance(values, float) else values
