"""Keep a team's robots apart by limits on their velocity commands.

Each robot limits its own command, using the observed robots' positions. Its speed towards another
robot may be at most ``rate * (gap - distance)``, with the gap between the two trunks. A robot
closer than ``distance`` backs away slowly. A command of zero stays zero.

This is the condition of a control barrier function (Ames, Xu, Grizzle and Tabuada, "Control Barrier
Function Based Quadratic Programs for Safety Critical Systems", 2017) with ``gap - distance`` as the
barrier. Each robot in a pair limits only its own velocity.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mqe.tasks.push.entities import seen_others
from mqe.tasks.push.features import PushConstants, SceneFeatures
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState

_LARGEST_RATE = 5.0  # [1/s] the gait brakes too slowly for a larger one
BACK_OFF = 0.2  # [m/s] largest speed away from a robot that is too close
_ROUNDS = 8  # steps of the projection onto all limits
_TINY = 1e-6  # [m] or [m/s]


def rate_of(decision_period: int) -> float:
    """Return the rate [1/s] for decisions with ``decision_period`` control steps, at most 5."""
    return min(_LARGEST_RATE, 0.5 / (decision_period * STEP_DT))


def keep_apart(
    velocity: Tensor, others: Tensor, is_there: Tensor | None, distance: float, rate: float
) -> Tensor:
    """Return velocity commands (..., 3), limited to keep ``distance`` [m] between robots.

    ``velocity`` (..., 3) has vx, vy [m/s] and the yaw rate, unchanged here. ``others`` (..., K, 2)
    [m] are other robots' positions. Only those in ``is_there`` (..., K) count, or all if it is
    None. All vectors are in the robot's heading frame.

    If several limits are exceeded, each correction is weighted by its excess, so the order of the
    others does not matter.
    """
    if others.shape[-2] == 0:
        return velocity
    gap = others.norm(dim=-1)
    towards = others / gap.clamp(min=_TINY).unsqueeze(-1)
    limit = (rate * (gap - distance)).clamp(min=-BACK_OFF)
    if is_there is not None:
        limit = torch.where(is_there, limit, math.inf)

    planar = velocity[..., :2]
    for _ in range(_ROUNDS):
        approach = (towards * planar.unsqueeze(-2)).sum(dim=-1)
        excess = (approach - limit).clamp(min=0.0)
        weight = excess / excess.sum(dim=-1, keepdim=True).clamp(min=_TINY)
        planar = planar - ((weight * excess).unsqueeze(-1) * towards).sum(dim=-2)
    is_moving = (velocity != 0.0).any(dim=-1, keepdim=True)
    planar = torch.where(is_moving, planar, velocity[..., :2])
    return torch.cat((planar, velocity[..., 2:]), dim=-1)


class CommandLimit:
    """Limits a whole team's commands at the robots' present positions."""

    def __init__(self, constants: PushConstants, distance: float, decision_period: int) -> None:
        """Keep ``distance`` [m] between trunks in the team of ``constants``."""
        self._constants = constants
        self._distance = distance
        self._rate = rate_of(decision_period)

    def __call__(self, velocity: Tensor, state: SceneState, memory: Tensor | None = None) -> Tensor:
        """Return the limited commands (N, A, 3). ``memory`` is an argument of ``SceneFeatures``."""
        features = SceneFeatures(state, self._constants, memory)
        is_there = seen_others(features) > 0.0
        others = features.places_b[:, :, 2:]
        return keep_apart(velocity, others, is_there, self._distance, self._rate)
