"""Planners, and scripts in the team's place, that results are compared with.

``mapush test planner --import navigation_baselines --task navigate --set task.planner=spline``,
``mapush test scripted_solo --import navigation_baselines --suite doors``

The reference's planners are as published: the spline has random knots and knows no obstacles. The
random tree knows neither the object's size nor obstacles between two nodes. ``ompl`` needs
``pip install '.[plan]'``.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

import mapush
from mapush.extensions.navigate.maps.arena_map import Placed, distance_to
from mapush.extensions.navigate.planners.entries import PLANNERS, Planner
from mapush.extensions.navigate.planners.followers import evenly_spaced
from mapush.extensions.navigate.planners.problem import MARGIN, Problem
from mqe.config import ConfigError, install
from mqe.controllers.frozen_policy import describe_policy
from mqe.env.environment import MultiAgentEnv
from mqe.extensions import load_extensions
from mqe.registry import TASKS
from mqe.tasks.push.scripted import LOOKED_AT, ScriptedTeam, columns_of
from mqe.world.obstacles import PARKED_BELOW

_JITTER = 0.5  # [m] of the spline's inner knots
_NUM_WAYPOINTS = 13
_STEP = 0.75  # [m] of the tree
_GOAL_BIAS = 0.75
_NODE_CLEARANCE = 1.1  # [m] from a node to the middle of an obstacle
_NEAR_GOAL = 1.5  # [m] from a node to the goal, at which the tree is complete
_MOST_NODES = 2000
NUM_ITERATIONS = 3000  # of the tree on each map
_CHECKED = 0.05  # [m] between two points of an edge that are checked


class GoalFollower:
    """Leads to the goal itself, however far it is."""

    def __init__(self, problem: Problem) -> None:
        """Take the goals of ``problem``."""
        self._goal = problem.maps.goal

    def subgoal(self, place: Tensor, index: Tensor) -> Tensor:
        """Return the sub-goals (N, 2)."""
        return self._goal[index]


def spline(problem: Problem) -> Tensor:
    """Return a natural cubic spline through the start, three knots near the straight way and the
    goal.
    """
    start = problem.maps.start.cpu().double()
    end = problem.maps.goal.cpu().double()
    generator = torch.Generator().manual_seed(0)

    def jitter() -> Tensor:
        return _JITTER * (2.0 * torch.rand(start.shape, generator=generator).double() - 1.0)

    middle = 0.5 * (start + end) + jitter()
    quarter = 0.5 * (start + middle) + jitter()
    three_quarters = 0.5 * (middle + end) + jitter()
    knots = torch.stack((start, quarter, middle, three_quarters, end), dim=1)
    return _natural_cubic(knots).to(problem.maps.start)


def _natural_cubic(knots: Tensor) -> Tensor:
    """Return 13 points (M, 13, 2) of the natural cubic spline through evenly spaced ``knots`` (M,
    5, 2).
    """
    num_pieces = knots.shape[1] - 1
    # Second derivatives at the inner knots, zero at both ends; knots are one apart.
    system = 4.0 * torch.eye(num_pieces - 1, dtype=knots.dtype)
    off = torch.ones(num_pieces - 2, dtype=knots.dtype)
    system += torch.diag(off, 1) + torch.diag(off, -1)
    bend = 6.0 * (knots[:, 2:] - 2.0 * knots[:, 1:-1] + knots[:, :-2])
    curvature = torch.nn.functional.pad(torch.linalg.solve(system, bend), (0, 0, 1, 1))
    at = torch.linspace(0.0, float(num_pieces), _NUM_WAYPOINTS, dtype=knots.dtype)
    piece = at.long().clamp(max=num_pieces - 1)
    right = (at - piece).view(-1, 1)
    left = 1.0 - right
    return (
        left * knots[:, piece]
        + right * knots[:, piece + 1]
        + (left**3 - left) / 6.0 * curvature[:, piece]
        + (right**3 - right) / 6.0 * curvature[:, piece + 1]
    )


def rrt(problem: Problem) -> Tensor:
    """Return 13 points on a random tree's path on each map, or the spline's without such a path."""
    maps = problem.maps
    starts = maps.start.tolist()
    goals = maps.goal.tolist()
    middles = maps.obstacle_pos.tolist()
    fallback = spline(problem)
    paths = []
    for k, (start, goal) in enumerate(zip(starts, goals, strict=True)):
        obstacles = [(x, y) for x, y, z in middles[k] if z > PARKED_BELOW]
        rng = random.Random(k)  # noqa: S311 - no secret
        path = _tree_path(rng, tuple(start), tuple(goal), obstacles, problem.arena)
        paths.append(fallback[k] if path is None else _resampled(path).to(fallback))
    return torch.stack(paths)


_Point = tuple[float, float]


def _tree_path(
    rng: random.Random,
    start: _Point,
    goal: _Point,
    obstacles: list[_Point],
    arena: tuple[float, float],
) -> list[_Point] | None:
    """Return the way-points from ``start`` to ``goal``, or None if the tree grew too large."""
    nodes = [start]
    parents = [0]
    for _ in range(10 * _MOST_NODES):
        if rng.random() < _GOAL_BIAS:
            target = goal
        else:
            target = (
                rng.uniform(-arena[0] / 2, arena[0] / 2),
                rng.uniform(-arena[1] / 2, arena[1] / 2),
            )
        nearest = min(range(len(nodes)), key=lambda i: math.dist(nodes[i], target))
        parent = nodes[nearest]
        share = _STEP / (math.dist(parent, target) + 0.01)
        node = (
            parent[0] + share * (target[0] - parent[0]),
            parent[1] + share * (target[1] - parent[1]),
        )
        if any(math.dist(node, middle) <= _NODE_CLEARANCE for middle in obstacles):
            continue
        nodes.append(node)
        parents.append(nearest)
        if math.dist(node, goal) < _NEAR_GOAL:
            path = [goal]
            at = len(nodes) - 1
            while at:
                path.append(nodes[at])
                at = parents[at]
            return [start, *reversed(path)]
        if len(nodes) >= _MOST_NODES:
            return None
    return None


def _resampled(path: list[_Point]) -> Tensor:
    """Return 13 points (13, 2) of a path: evenly by number if it has fewer, else by length."""
    points = torch.tensor(path, dtype=torch.float64)
    if len(points) < _NUM_WAYPOINTS:
        at = torch.linspace(0.0, len(points) - 1.0, _NUM_WAYPOINTS, dtype=torch.float64)
        low = at.long().clamp(max=len(points) - 2)
        return torch.lerp(points[low], points[low + 1], (at - low).unsqueeze(-1))
    lengths = (points[1:] - points[:-1]).norm(dim=-1)
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    stations = torch.linspace(0.0, float(ends[-1]), _NUM_WAYPOINTS, dtype=torch.float64)
    high = torch.searchsorted(ends, stations).clamp(1, len(points) - 1)
    share = (stations - ends[high - 1]) / lengths[high - 1]
    return torch.lerp(points[high - 1], points[high], share.unsqueeze(-1))


def ompl(problem: Problem) -> Tensor:
    """Return way-points (M, 128, 2) on nearly shortest paths for a disc at the object's size. A map
    without a tree path gets the straight line.

    Raises ConfigError if OMPL is not installed.
    """
    try:
        from ompl import base, geometric, util  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(
            f"task.planner: ompl is not installed; {install('plan')}, or say task.planner=field"
        ) from None
    _seed(util)
    paths = [_path(problem, k, base, geometric) for k in range(len(problem.maps.goal))]
    return torch.stack(paths).to(problem.maps.goal)


@cache
def _seed(util: Any) -> None:
    """Seed OMPL (one seed per process) and silence it."""
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
        point = (state[0], state[1])
        to_wall = min(half_size[0] - abs(point[0]), half_size[1] - abs(point[1]))
        is_clear = to_wall >= needed and all(
            distance_to(obstacle, point) >= needed for obstacle in obstacles
        )
        # Layouts leave the object room at both ends, but not always the margin.
        return is_clear or min(math.dist(point, start), math.dist(point, goal)) < MARGIN

    space = base.RealVectorStateSpace(2)
    bounds = base.RealVectorBounds(2)
    for axis, half in enumerate(half_size):
        bounds.setLow(axis, -half)
        bounds.setHigh(axis, half)
    space.setBounds(bounds)
    setup = geometric.SimpleSetup(space)
    setup.setStateValidityChecker(is_free)
    ends = []
    for point in (start, goal):
        state = space.allocState()
        state[0], state[1] = point
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


class WalkingTeam:
    """Robots on a straight walk to the sub-goal, through the object."""

    def __init__(self, obs_names: Sequence[str], device: torch.device) -> None:
        """Take the names of an observation's numbers."""
        self._columns = columns_of(obs_names, LOOKED_AT[:2], device)

    def __call__(self, obs: Tensor) -> Tensor:
        """Return the actions (N, A, 3) at observations (N, A, O)."""
        to_goal = obs[..., self._columns]
        velocity = to_goal / to_goal.norm(dim=-1, keepdim=True).clamp(min=0.5)
        turn = 4.0 * torch.atan2(to_goal[..., 1:], to_goal[..., :1])
        return torch.cat((velocity, turn.clamp(-1.0, 1.0)), dim=-1)


def walk(env: MultiAgentEnv) -> Callable[[Tensor], Tensor]:
    """Lead robots on a straight walk to the planner's sub-goals, in place of the team."""
    names = _observed_names(env)
    return _led(env, WalkingTeam(names, env.device))


def scripted_team(env: MultiAgentEnv) -> Callable[[Tensor], Tensor]:
    """Lead a script with all robots pushing, in place of the team."""
    return _scripted(env, None)


def scripted_solo(env: MultiAgentEnv) -> Callable[[Tensor], Tensor]:
    """Lead a script with one pushing robot, in place of the team. The others step aside."""
    return _scripted(env, 1)


def _scripted(env: MultiAgentEnv, num_pushing: int | None) -> Callable[[Tensor], Tensor]:
    names = _observed_names(env)
    reach = env.task.constants.push.object.reach
    return _led(env, ScriptedTeam(names, reach, len(env.scene.robots), env.device, num_pushing))


def _led(env: MultiAgentEnv, script: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Put a script in the team's place. Return the policy ``planner``."""
    env.task.team.policy = script
    return TASKS["go1push_upper"].policies["planner"](env)


def _observed_names(env: MultiAgentEnv) -> list[str]:
    """Return the names of the team's observations.

    Raise ConfigError for a team without the scripts' required observations.
    """
    names = describe_policy(env.task.cfg.team).observation_names
    missing = [name for name in LOOKED_AT if name not in names]
    if missing:
        raise ConfigError(
            f"task.team: scripts read {missing[0]}, and its robots do not observe it; name another"
        )
    return names


load_extensions()
for _script in (walk, scripted_team, scripted_solo):
    TASKS["go1push_upper"].policies.register(_script.__name__, _script)
PLANNERS.register("goal", Planner(GoalFollower))
mapush.register_planner("spline", spline)
mapush.register_planner("rrt", rrt)
mapush.register_planner("ompl", ompl)
