"""Planners by name.

A planner is a function from ``Problem`` to way-points (M, P, 2), P points from the object to the
goal on each of M maps. The team follows these way-points. The planner ``field`` needs none.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mapush.extensions.navigate.planners.followers import FieldFollower, Follower, WaypointFollower
from mapush.extensions.navigate.planners.problem import Problem
from mqe.extensions import Registry

# Way-points (M, P, 2) of a problem.
WaypointPlanner = Callable[[Problem], Tensor]


class Planner(NamedTuple):
    """An entry in ``PLANNERS``."""

    follow: Callable[[Problem], Follower]
    sways: bool = False  # turns the sub-goal to and fro while the object stands still


PLANNERS: Registry[Planner] = Registry("planner")


def straight_line(problem: Problem) -> Tensor:
    """Return each map's straight way to the goal, through obstacles."""
    return torch.stack((problem.maps.start, problem.maps.goal), dim=1)


def register_planner(name: str, function: WaypointPlanner) -> None:
    """Register a planner under ``name``, for ``task.planner``.

    ``function`` returns way-points (M, P, 2) [m] from the object to the goal, P on each of M maps.
    The team follows these way-points. Raise ConfigError if the name is taken.
    """
    PLANNERS.register(name, Planner(lambda problem: WaypointFollower(function(problem))))


PLANNERS.register("field", Planner(FieldFollower, sways=True))
register_planner("straight_line", straight_line)
