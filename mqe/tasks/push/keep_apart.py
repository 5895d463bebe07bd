"""Keep a team's robots apart by limits on their velocity commands.

Each robot limits its own command, using the other robots' observed positions, noise included. Its
speed towards another robot may be at most ``rate * (gap - distance)``, with the gap between the two
trunks. A robot closer than ``distance`` backs away slowly. A command of zero stays zero.

This is the condition of a control barrier function (Ames, Xu, Grizzle and Tabuada, "Control Barrier
Function Based Quadratic Programs for Safety Critical Systems", 2017) with ``gap - distance`` as the
barrier. Each robot in a pair limits only its own velocity.
"""

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mqe.config import ConfigError
from mqe.world.scene import STEP_DT

_LARGEST_RATE = 5.0  # [1/s] the gait brakes too slowly for a larger one
BACK_OFF = 0.2  # [m/s] largest speed away from a robot that is too close
_ROUNDS = 8  # steps of the projection onto all limits
_TINY = 1e-6  # [m] or [m/s]
_OTHER_ROBOT = re.compile(r"((?:robot|teammates)\d+)_x")  # name of another robot's x component


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


class CommandLimit(nn.Module):
    """Limit on a robot's command by ``task.keep_apart``, computed from its observation."""

    places: Tensor  # (2 K,) columns of the other robots' x and y in an observation
    presence: Tensor  # (K,) columns of their presence, none if all are present

    def __init__(self, obs_names: Sequence[str], distance: float, decision_period: int) -> None:
        """Keep ``distance`` [m]. ``obs_names`` name an observation's components."""
        super().__init__()
        self.distance = distance
        self.rate = rate_of(decision_period)
        robot_names = [match[1] for match in map(_OTHER_ROBOT.fullmatch, obs_names) if match]
        if not robot_names:
            raise ConfigError(
                f"task.keep_apart={distance:g} needs observations of other robots; say "
                "task.keep_apart=0"
            )
        places = [obs_names.index(f"{robot}_{axis}") for robot in robot_names for axis in "xy"]
        self.register_buffer("places", torch.tensor(places))
        presence = [f"{robot}_present" for robot in robot_names]
        presence = [name for name in presence if name in obs_names]
        self.register_buffer(
            "presence", torch.tensor([obs_names.index(name) for name in presence]).long()
        )

    def forward(self, obs: Tensor, command: Tensor) -> Tensor:
        """Return limited commands (..., 3) of robots with observations ``obs`` (..., O)."""
        others, is_there = self.others(obs)
        return keep_apart(command, others, is_there, self.distance, self.rate)

    def others(self, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the other robots' positions (..., K, 2) [m] and a mask (..., K) of present ones,
        None for all.
        """
        is_there = obs[..., self.presence] > 0.0 if len(self.presence) else None
        return obs[..., self.places].unflatten(-1, (-1, 2)), is_there
