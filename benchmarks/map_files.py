"""Map files, for play on a suite's maps in other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mapush.extensions.navigate.maps.arena_map import HEIGHT, ArenaMap

_DIGITS = 6  # of metres and radians in a file: a micrometre


def to_json(maps: Sequence[ArenaMap]) -> str:
    """Return ``maps`` as text for a .json file, one per line, in the format of ``read_maps``."""
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
