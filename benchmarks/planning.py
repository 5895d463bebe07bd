"""Planners on the maps of each suite: ``planning.py [--suites doors ...] [--planners field ...]``.

Each planner plans each map on one CPU thread. A line gives its median CPU time and its path length
relative to the shortest. With ``--layouts`` nothing is planned: each suite's maps are written to a
folder, as JSON for ``task.map``.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path

import more_maps as more_maps  # registers families of maps
import navigation_baselines as navigation_baselines  # registers planners
import torch
from map_files import to_json
from measuring import emit
from torch import Tensor

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.runs import evaluation_worlds
from mapush.extensions.navigate.frozen_team import settings_of
from mapush.extensions.navigate.maps.arena_map import ArenaMap, Room
from mapush.extensions.navigate.maps.families import FAMILIES, draw_maps
from mapush.extensions.navigate.maps.solved import room_of
from mapush.extensions.navigate.maps.table import MapTable
from mapush.extensions.navigate.planners.entries import PLANNERS
from mapush.extensions.navigate.planners.followers import Follower
from mapush.extensions.navigate.planners.problem import solve_problem
from mqe.config import merge
from mqe.controllers.frozen_policy import describe_policy

SUITES = ("two_cubes", "scattered", "doors", "u_turn")
PLANNED = ("field", "straight_line", "spline", "rrt")
SEED = 20_261_126  # of the maps
LOOK_AHEAD = 0.5  # [m]


def make_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--suites", nargs="+", default=SUITES)
    parser.add_argument("--planners", nargs="+", default=PLANNED)
    parser.add_argument("--num_maps", type=int, default=8)
    parser.add_argument("--map_seed", type=int, default=SEED)
    parser.add_argument("--layouts", type=Path, metavar="FOLDER")
    return parser


def settings(arguments: argparse.Namespace, suite: str) -> RunCfg:
    """Return the settings of a suite's worlds."""
    worlds = config.load_suite(suite if suite in config.SUITES else "scattered").worlds
    task = {"map_seed": arguments.map_seed, "num_maps": arguments.num_maps}
    if suite in FAMILIES:
        task["map"] = suite
    return evaluation_worlds.settings(None, merge(worlds, {"task": task}))


def drawn(cfg: RunCfg) -> tuple[list[ArenaMap], Room]:
    """Return a suite's maps, and the team object's required clearance."""
    room = room_of(settings_of(cfg.task, describe_policy(cfg.task.team)).pushed_object())
    return draw_maps(cfg.task.map, cfg.task.map_seed, cfg.task.num_maps, room), room


def plans(cfg: RunCfg, planner: str) -> dict[str, float]:
    """Return the median CPU time per map [ms] and the mean planned path length relative to the
    shortest.
    """
    maps, room = drawn(cfg)
    times = []
    lengths = []
    for arena_map in maps:
        begun = time.thread_time()
        # A repeated map is solved again.
        problem = solve_problem.__wrapped__((arena_map,), room.reach, torch.device("cpu"))
        solved = time.thread_time()
        follower = PLANNERS[planner].follow(problem, LOOK_AHEAD)
        planned = time.thread_time()
        # The cost-to-go of every cell is the field's own work; others do without.
        times.append(planned - (begun if planner == "field" else solved))
        lengths.append(float(way_length(follower, problem.maps) / problem.shortest))
    return {
        "planning_ms": 1e3 * statistics.median(times),
        "way_over_shortest": statistics.mean(lengths),
    }


def way_length(follower: Follower, table: MapTable) -> Tensor:
    """Return an object's path length [m] along straight lines to each sub-goal, 0.1 m at a time."""
    position = table.start
    index = torch.zeros(1, dtype=torch.int64)
    length = torch.zeros(())
    for _ in range(1000):
        rest = table.goal - position
        if rest.norm() < 0.1:
            break
        ahead = follower.subgoal(position, index) - position
        position = position + 0.1 * ahead / ahead.norm().clamp(min=1e-6)
        length += 0.1
    return length + rest.norm()


def main() -> int:
    """Print a line for each suite and planner, or write maps. Return the exit code."""
    arguments = make_parser().parse_args()
    torch.set_num_threads(1)
    if arguments.layouts is not None:
        arguments.layouts.mkdir(parents=True, exist_ok=True)
        for suite in arguments.suites:
            maps, _ = drawn(settings(arguments, suite))
            (arguments.layouts / f"{suite}.json").write_text(to_json(maps), encoding="utf-8")
        return 0
    for suite, planner in itertools.product(arguments.suites, arguments.planners):
        emit(suite=suite, planner=planner, **plans(settings(arguments, suite), planner))
    return 0


if __name__ == "__main__":
    sys.exit(main())
