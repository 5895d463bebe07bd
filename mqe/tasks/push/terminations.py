"""What ends a push episode before its time is up, as named conditions (N,) bool."""

from __future__ import annotations

import torch
from torch import Tensor

from mqe.tasks.drop import SPAWN_HEIGHT
from mqe.world.geometry import roll_pitch_of
from mqe.world.objects import ObjectCfg

ROLL_LIMIT = 0.8  # [rad]
PITCH_LIMIT = 1.0  # [rad] ours: the reference asks for 1.6, more than a pitch angle can be
HEIGHT_LIMIT = 0.35  # [m] up or down from the height at spawn


def success(goal_distance: Tensor, radius: float) -> Tensor:
    """Return where the object's origin is within ``radius`` [m] of the goal; distances (N,)."""
    return goal_distance < radius


class Posture:
    """How far a robot may roll, pitch and be lifted or dropped; the object may tilt, but not rise
    or fall.
    """

    names = ("roll", "pitch", "height")

    def __init__(
        self,
        num_agents: int,
        obj: ObjectCfg,
        roll_limit: float,
        pitch_limit: float,
        device: torch.device,
    ) -> None:
        """Set limits [rad]; heights may differ by 0.35 m from those at spawn."""
        self._spawn_height = torch.tensor(
            [SPAWN_HEIGHT] * num_agents + [obj.spawn_height], device=device
        )
        limits = [[roll_limit] * num_agents + [torch.inf], [pitch_limit] * num_agents + [torch.inf]]
        limits += [[HEIGHT_LIMIT] * (num_agents + 1)]
        self._limits = torch.tensor(limits, device=device).unsqueeze(1)  # (3, 1, B)

    def lost(self, rotation: Tensor, body_z: Tensor) -> Tensor:
        """Return where any robot rolls or pitches too far, and where any body's height (N, B) [m]
        is off, (3, N).

        Matrices (N, B, 3, 3) of the robots and, last, the object.
        """
        off = torch.stack((*roll_pitch_of(rotation), body_z - self._spawn_height))
        return (off.abs() > self._limits).any(dim=2)


def collision(pair_distance: Tensor, limit: float) -> Tensor:
    """Return where two robots' trunks are closer than ``limit`` [m] in space; distances of all
    pairs (N, P).
    """
    return (pair_distance < limit).any(dim=1)
