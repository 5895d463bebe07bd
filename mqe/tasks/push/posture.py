"""Limits in the push task: a robot's posture, and the object's distance from the goal."""

import torch
from torch import Tensor

from mqe.tasks.drop import SPAWN_HEIGHT
from mqe.world.geometry import roll_pitch_of
from mqe.world.objects import ObjectCfg

ROLL_LIMIT = 0.8  # [rad]
PITCH_LIMIT = 1.0  # [rad] ours: the reference asks for 1.6, more than a pitch angle can be
HEIGHT_LIMIT = 0.35  # [m] up or down from the height at spawn


def success(goal_distance: Tensor, radius: float) -> Tensor:
    """Return a mask: the object's origin is within ``radius`` [m] of the goal, at distances
    (N,).
    """
    return goal_distance < radius


class Posture:
    """Limits on a robot's roll, pitch and height. The object may tilt, but not rise or fall."""

    names = ("roll", "pitch", "height")

    def __init__(
        self,
        num_agents: int,
        obj: ObjectCfg,
        roll_limit: float,
        pitch_limit: float,
        device: torch.device,
    ) -> None:
        """Set limits [rad]. Heights may differ by 0.35 m from those at spawn."""
        self._spawn_height = torch.tensor(
            [SPAWN_HEIGHT] * num_agents + [obj.spawn_height], device=device
        )
        limits = [[roll_limit] * num_agents + [torch.inf], [pitch_limit] * num_agents + [torch.inf]]
        limits += [[HEIGHT_LIMIT] * (num_agents + 1)]
        self._limits = torch.tensor(limits, device=device).unsqueeze(1)  # (3, 1, B)

    def lost(self, rotation: Tensor, body_z: Tensor, is_out: Tensor | None = None) -> Tensor:
        """Return three masks (3, N): excessive roll, excessive pitch, a body's height out of range.

        ``rotation`` (N, B, 3, 3) and heights ``body_z`` (N, B) [m] belong to the robots and, last,
        the object. Robots in ``is_out`` (N, A) do not count.
        """
        off = torch.stack((*roll_pitch_of(rotation), body_z - self._spawn_height))
        is_off = off.abs() > self._limits
        if is_out is not None:
            is_off = is_off & ~torch.nn.functional.pad(is_out, (0, 1))
        return is_off.any(dim=2)
