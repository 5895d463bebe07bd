"""A task's maps with their planning problem."""

from pathlib import Path

import torch

from mapush.extensions.navigate.maps.arena_map import Room, check_map, read_maps
from mapush.extensions.navigate.maps.families import FAMILIES, draw_maps
from mapush.extensions.navigate.planners.problem import BLOCKED, Problem, solve_problem
from mapush.extensions.navigate.settings import NavigateCfg
from mqe.config import ConfigError
from mqe.tasks.push.layouts import OBJECT_CLEARANCE
from mqe.world.objects import ObjectCfg

_ROBOT_REACH = 0.5  # [m] from a trunk's middle to its furthest leg


def room_of(obj: ObjectCfg) -> Room:
    """Return the room for an object and its team."""
    reach = obj.reach
    # Robots on the ring keep clear of the object's sides.
    furthest = max(obj.spawn_ring[1], reach + OBJECT_CLEARANCE)
    return Room(reach, furthest + _ROBOT_REACH)


def problem_of(cfg: NavigateCfg, obj: ObjectCfg, device: torch.device) -> Problem:
    """Return the problem on the task's maps.

    Raises ConfigError for a map without room for the object or without a
    way for it to the goal, and for different arenas.
    """
    room = room_of(obj)
    if cfg.map in FAMILIES:
        maps = draw_maps(cfg.map, cfg.map_seed, cfg.num_maps, room)
    else:
        maps = read_maps(Path(cfg.map))
    for k, arena_map in enumerate(maps):
        check_map(arena_map, room, f"task.map={cfg.map}: map {k}")
    arenas = {arena_map.arena for arena_map in maps}
    if len(arenas) > 1:
        raise ConfigError(
            f"task.map={cfg.map}: its maps have {len(arenas)} different arenas, and the worlds of "
            "a run share one; give all maps the same"
        )
    problem = solve_problem(tuple(maps), room.reach, device)
    is_blocked = (problem.shortest > BLOCKED).nonzero().flatten().tolist()
    if is_blocked:
        raise ConfigError(
            f"task.map={cfg.map}: on map {is_blocked[0]} ({len(is_blocked)} in all) the object "
            "fits through no gap on the way to the goal; widen one, or take a smaller object"
        )
    return problem
