"""The push task's sets: other robots, the whole team, and points on the object's outline.

An entity's first feature is 1 if the entity is present. An absent entity's features are all 0. A
set has room for ``ROOM`` robots, so all teams' observations have equal sizes. N worlds, A robots,
M = ``ROOM``, P outline points, E entities, K features per entity.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from mqe.tasks.push.features import SceneFeatures
from mqe.tasks.push.settings import ROOM
from mqe.world.geometry import axes_along, in_frame


def others_b(features: SceneFeatures) -> Tensor:
    """Return the set (N, A, M - 1, 5) of other robots in each robot's heading frame.

    Features: presence, x, y [m], sine and cosine of the heading.
    """
    room = ROOM - 1
    return as_set(features.bodies_b[:, :, 1:], seen_others(features), room)


def seen_others(features: SceneFeatures) -> Tensor:
    """Return 1 for every other robot (N, A, A - 1) observed by a robot, else 0."""
    roster = features.roster
    is_seen = roster.takes_part.unsqueeze(1) * roster.observes
    others = features.constants.order[:, 1:].expand(len(is_seen), -1, -1)
    return is_seen.gather(2, others)


def team(features: SceneFeatures) -> Tensor:
    """Return the set (N, M, 8) of all robots in the critic's frame: presence, then
    ``SceneFeatures.robots_towards_goal``.
    """
    robots = features.robots_towards_goal
    return as_set(robots, features.roster.takes_part, ROOM)


def outline_towards_goal(features: SceneFeatures) -> Tensor:
    """Return the set (N, P, 3) of outline points in the critic's frame: presence, x, y [m]."""
    axes = axes_along(features.state.goal_direction).unsqueeze(1)
    points = in_frame(features.outline, axes)
    return torch.cat((torch.ones_like(points[..., :1]), points), dim=-1)


def as_set(values: Tensor, is_there: Tensor, room: int) -> Tensor:
    """Pad entities (..., E, K) to the set (..., room, 1 + K), with presence as first feature."""
    is_there = is_there.unsqueeze(-1)
    entities = torch.cat((is_there, values * is_there), dim=-1)
    return pad(entities, (0, 0, 0, room - entities.shape[-2]))
