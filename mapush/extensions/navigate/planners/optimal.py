"""OMPL's Informed RRT*, which knows of the object's size: an optional baseline, and a check of the
field's lengths. It needs the extra ``[plan]``.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mapush.extensions.navigate.maps.arena_map import Placed, distance_to
from mapush.extensions.navigate.planners.followers import evenly_spaced
from mapush.extensions.navigate.planners.problem import MARGIN, Problem
from mqe.config import ConfigError
from mqe.world.obstacles import PARKED_BELOW

NUM_ITERATIONS = 3000  # of the tree on each map
_CHECKED = 0.05  # [m] between two points of an edge that are checked


def ompl(problem: Problem) -> Tensor:
    """Return way-points (M, 128, 2) of nearly shortest ways of a disc as large as the object; the
    straight line for a map on which the tree finds none.

    Raises ConfigError if OMPL is not installed.
    """
    try:
        from ompl import base, geometric, util  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(
            "task.planner: ompl is not installed; pip install 'mapush[plan]', or say "
            "task.planner=field"
        ) from None
    _seed(util)
    paths = [_path(problem, k, base, geometric) for k in range(len(problem.maps.goal))]
    return torch.stack(paths).to(problem.maps.goal)


@cache
def _seed(util: Any) -> None:
    """Seed OMPL, which takes a seed once in a process, and keep it from talking."""
    util.setLogLevel(util.LogLevel.LOG_ERROR)
    util.RNG.setSeed(1)


def _path(problem: Problem, index: int, base: Any, geometric: Any) -> Tensor:
    """Return way-points (128, 2) on one map."""
    half_size = [length / 2 for length in problem.arena]
    start = problem.maps.start[index].tolist()
    goal = problem.maps.goal[index].tolist()
    obstacles = _placed(problem, index)
    needed = problem.reach + MARGIN

    def is_free(state: Any) -> bool:
        place = (state[0], state[1])
        to_wall = min(half_size[0] - abs(place[0]), half_size[1] - abs(place[1]))
        is_clear = to_wall >= needed and all(
            distance_to(each, place) >= needed for each in obstacles
        )
        # Layouts leave the object room at both ends, but not always the margin.
        return is_clear or min(math.dist(place, start), math.dist(place, goal)) < MARGIN

    space = base.RealVectorStateSpace(2)
    bounds = base.RealVectorBounds(2)
    for axis, half in enumerate(half_size):
        bounds.setLow(axis, -half)
        bounds.setHigh(axis, half)
    space.setBounds(bounds)
    setup = geometric.SimpleSetup(space)
    setup.setStateValidityChecker(is_free)
    ends = []
    for place in (start, goal):
        state = space.allocState()
        state[0], state[1] = place
        ends.append(state)
    setup.setStartAndGoalStates(*ends)
    information = setup.getSpaceInformation()
    information.setStateValidityCheckingResolution(_CHECKED / math.hypot(*problem.arena))
    setup.setOptimizationObjective(base.PathLengthOptimizationObjective(information))
    setup.setPlanner(geometric.InformedRRTstar(information))
    count = itertools.count()
    setup.solve(base.PlannerTerminationCondition(lambda: next(count) > NUM_ITERATIONS))
    states = [start, goal]
    if setup.haveExactSolutionPath():
        states = [(state[0], state[1]) for state in setup.getSolutionPath().getStates()]
    return evenly_spaced(torch.tensor([states]))[0][0]


def _placed(problem: Problem, index: int) -> list[Placed]:
    """Return the obstacles of one map."""
    yaws = problem.maps.obstacle_yaw[index].tolist()
    places = problem.maps.obstacle_pos[index].tolist()
    return [
        Placed(slot, x, y, yaw)
        for slot, (x, y, z), yaw in zip(problem.shapes.slots, places, yaws, strict=True)
        if z > PARKED_BELOW
    ]
