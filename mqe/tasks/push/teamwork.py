"""Teamwork: how hard each robot has pushed lately, and new ground that the object gained while all
of them pushed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mqe.world.scene import STEP_DT

EFFORT_TIME = 1.0  # [s] over which pushes are averaged: legs push in jolts
LEAST_EFFORT = 1.0  # [N] a team that pushes less hard has no shares


class Teamwork:
    """Each robot's push towards the goal, smoothed over about a second, and the object's nearest
    approach to the goal.

    Only new ground counts, so pushing back and forth gains nothing.
    """

    def __init__(self, num_envs: int, num_agents: int, device: torch.device | str = "cpu") -> None:
        self.effort = torch.zeros(num_envs, num_agents, device=device)  # [N]
        # [m] object to goal, in this episode.
        self.nearest = torch.full((num_envs,), torch.inf, device=device)

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask`` (N,)."""
        self.effort.masked_fill_(mask.unsqueeze(1), 0.0)
        self.nearest.masked_fill_(mask, torch.inf)

    def update(self, push: Tensor, prev_distance: Tensor, distance: Tensor) -> Tensor:
        """Count one control step; return the new ground that it gained, times how equally the
        robots push, (N,) [m].

        The object came from ``prev_distance`` to ``distance`` (N,) [m] of the goal. ``push`` (N, A)
        [N] is each robot's push towards the goal at the end; a push away from the goal counts as 0.
        """
        self.effort.lerp_(push.clamp(min=0.0), STEP_DT / EFFORT_TIME)
        torch.minimum(self.nearest, prev_distance, out=self.nearest)
        gained = (self.nearest - distance).clamp(min=0.0)
        torch.minimum(self.nearest, distance, out=self.nearest)
        return gained * self.equality

    @property
    def equality(self) -> Tensor:
        """(N,) A times the least robot's share of all efforts: 1 where all push alike, 0 where one
        does nothing.
        """
        total = self.effort.sum(dim=1).clamp(min=LEAST_EFFORT)
        return self.effort.amin(dim=1) * self.effort.shape[1] / total

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is kept from one control step to the next."""
        return {"effort": self.effort.clone(), "nearest": self.nearest.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Resume from ``state_dict``."""
        self.effort.copy_(state["effort"])
        self.nearest.copy_(state["nearest"])
