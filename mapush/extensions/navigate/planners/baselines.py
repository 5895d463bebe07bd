"""Planners to compare with: the straight line, and the reference's spline and random tree.

The reference trains with the spline, whose knots are random and which does not know of obstacles,
and its tree knows neither of the object's size nor of obstacles between two nodes. Both are as they
are there, so that a comparison is with what was published.
"""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor

from mapush.extensions.navigate.planners.problem import Problem
from mqe.world.obstacles import PARKED_BELOW

_JITTER = 0.5  # [m] of the spline's inner knots
_NUM_WAYPOINTS = 13
_STEP = 0.75  # [m] of the tree
_GOAL_BIAS = 0.75
_NODE_CLEARANCE = 1.1  # [m] from a node to the middle of an obstacle
_NEAR_GOAL = 1.5  # [m] from a node to the goal, at which the tree is complete
_MOST_NODES = 2000


def straight_line(problem: Problem) -> Tensor:
    """Return the straight way to the goal, whatever is between."""
    return torch.stack((problem.maps.start, problem.maps.goal), dim=1)


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
    """Return 13 points of the path of a random tree on each map; the spline's where it finds
    none.
    """
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
        here = nodes[nearest]
        share = _STEP / (math.dist(here, target) + 0.01)
        node = (here[0] + share * (target[0] - here[0]), here[1] + share * (target[1] - here[1]))
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
    wanted = torch.linspace(0.0, float(ends[-1]), _NUM_WAYPOINTS, dtype=torch.float64)
    high = torch.searchsorted(ends, wanted).clamp(1, len(points) - 1)
    share = (wanted - ends[high - 1]) / lengths[high - 1]
    return torch.lerp(points[high - 1], points[high], share.unsqueeze(-1))
