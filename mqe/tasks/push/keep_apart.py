"""A limit of velocity commands that keeps the robots of a team apart.

Every robot limits its own command by the places of the others that it observes: it approaches
none of them faster than a rate times what is left of the distance, and backs off slowly from one
that is nearer. With the distance as a barrier function, that is the condition of Ames, Xu, Grizzle
and Tabuada, "Control Barrier Function Based Quadratic Programs for Safety Critical Systems" (2017),
each robot answering for its own part of the approach. A robot that is told to stand stands.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mqe.tasks.push.entities import seen_others
from mqe.tasks.push.features import PushConstants, SceneFeatures
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState

_LARGEST_RATE = 5.0  # [1/s] above it the gait is too slow to brake
BACK_OFF = 0.2  # [m/s] at most, from a robot that is nearer than the distance
_ROUNDS = 8  # of projections
_TINY = 1e-6  # [m] or [m/s]


def rate_of(decision_period: int) -> float:
    """Return the rate [1/s] at which two robots that approach each other just reach the distance
    within a decision of ``decision_period`` control steps; at most 5.
    """
    return min(_LARGEST_RATE, 0.5 / (decision_period * STEP_DT))


def keep_apart(
    velocity: Tensor, others: Tensor, is_there: Tensor | None, distance: float, rate: float
) -> Tensor:
    """Return the velocity commands (..., 3) of robots, limited so that they keep ``distance`` [m].

    ``velocity`` has vx, vy [m/s] and the yaw rate, which stays as it is; ``others`` (..., K, 2) [m]
    are the places of other robots, of which those of ``is_there`` (..., K) count, or all. Vectors
    are in the robot's heading frame. A robot between others that it cannot all obey
    weighs them by how much it exceeds their limits, so the order of the others does not matter.
    """
    if others.shape[-2] == 0:
        return velocity
    gap = others.norm(dim=-1)
    towards = others / gap.clamp(min=_TINY).unsqueeze(-1)
    limit = (rate * (gap - distance)).clamp(min=-BACK_OFF)
    if is_there is not None:
        limit = torch.where(is_there, limit, math.inf)

    # Near the command, towards all limits at once: what is exceeded more weighs more.
    planar = velocity[..., :2]
    for _ in range(_ROUNDS):
        approach = (towards * planar.unsqueeze(-2)).sum(dim=-1)
        excess = (approach - limit).clamp(min=0.0)
        weight = excess / excess.sum(dim=-1, keepdim=True).clamp(min=_TINY)
        planar = planar - ((weight * excess).unsqueeze(-1) * towards).sum(dim=-2)
    is_told_to_move = (velocity != 0.0).any(dim=-1, keepdim=True)
    planar = torch.where(is_told_to_move, planar, velocity[..., :2])
    return torch.cat((planar, velocity[..., 2:]), dim=-1)


class CommandLimit:
    """The limit of a whole team's commands, at the places where the robots are."""

    def __init__(self, constants: PushConstants, distance: float, decision_period: int) -> None:
        """Keep ``distance`` [m] between the trunks of the team of ``constants``."""
        self._constants = constants
        self._distance = distance
        self._rate = rate_of(decision_period)

    def __call__(self, velocity: Tensor, state: SceneState, memory: Tensor | None = None) -> Tensor:
        """Return the limited commands (N, A, 3); ``memory`` is that of ``SceneFeatures``."""
        features = SceneFeatures(state, self._constants, memory)
        is_there = seen_others(features) > 0.0
        others = features.places_b[:, :, 2:]
        return keep_apart(velocity, others, is_there, self._distance, self._rate)
