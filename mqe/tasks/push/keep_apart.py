"""A limit of velocity commands that keeps the robots of a team apart.

Every robot limits its own command by the places of the others that it observes: it approaches
none of them faster than ``RATE`` times what is left of the distance, and backs off from one that
is nearer. With the distance as a barrier function, that is the condition of Ames, Xu, Grizzle and
Tabuada, "Control Barrier Function Based Quadratic Programs for Safety Critical Systems" (2017),
each robot answering for its own part of the approach.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mqe.tasks.push.features import PushConstants, SceneFeatures
from mqe.world.state import SceneState

# [1/s] So fast, two robots just reach the distance in the 0.1 s of a usual decision.
RATE = 5.0
# Of the most violated limit at a time, as in the relaxation method of Motzkin and Schoenberg, "The
# Relaxation Method for Linear Inequalities" (1954).
_ROUNDS = 4
_LEAST_GAP = 1e-3  # [m]


def keep_apart(
    velocity: Tensor, others: Tensor, is_there: Tensor | None, distance: float
) -> Tensor:
    """Return the velocity commands (..., 3) of robots, limited so that they keep ``distance`` [m].

    ``velocity`` has vx, vy [m/s] and the yaw rate, which stays as it is; ``others`` (..., K, 2) [m]
    are the places of other robots, of which those of ``is_there`` (..., K) count, or all. Vectors
    are in the robot's heading frame.
    """
    if others.shape[-2] == 0:
        return velocity
    gap = others.norm(dim=-1)
    towards = others / gap.clamp(min=_LEAST_GAP).unsqueeze(-1)
    limit = RATE * (gap - distance)
    if is_there is not None:
        limit = torch.where(is_there, limit, math.inf)

    numbers = torch.arange(others.shape[-2], device=others.device)
    planar = velocity[..., :2]
    for _ in range(_ROUNDS):
        approach = (towards * planar.unsqueeze(-2)).sum(dim=-1)
        excess, worst = (approach - limit).max(dim=-1, keepdim=True)
        axis = (towards * (numbers == worst).unsqueeze(-1)).sum(dim=-2)
        planar = planar - excess.clamp(min=0.0) * axis
    return torch.cat((planar, velocity[..., 2:]), dim=-1)


class CommandLimit:
    """The limit of a whole team's commands, at the places where the robots are."""

    def __init__(self, constants: PushConstants, distance: float) -> None:
        """Keep ``distance`` [m] between the trunks of the team of ``constants``."""
        self._constants = constants
        self._distance = distance

    def __call__(self, velocity: Tensor, state: SceneState, memory: Tensor | None = None) -> Tensor:
        """Return the limited commands (N, A, 3); ``memory`` is that of ``SceneFeatures``."""
        features = SceneFeatures(state, self._constants, memory)
        takes_part = features.roster.takes_part > 0.0
        is_there = takes_part[:, self._constants.order[:, 1:]]
        return keep_apart(velocity, features.places_b[:, :, 2:], is_there, self._distance)
