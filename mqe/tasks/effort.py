"""Effort: how hard each robot has pushed the object towards the goal lately."""

from __future__ import annotations

from torch import Tensor

from mqe.scene import STEP_DT

EFFORT_TIME = 1.0  # [s] over which pushes are averaged: legs push in jolts


class Effort:
    """Each robot's push towards the goal, smoothed over about a second."""

    def __init__(self, values: Tensor) -> None:
        """Keep ``values`` (N, A) [N]; zeros are robots that have not pushed yet."""
        self.values = values

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask`` (N,)."""
        self.values.masked_fill_(mask.unsqueeze(1), 0.0)

    def update(self, push: Tensor) -> None:
        """Count one control step that ended with robots pushing so hard towards the goal, (N, A) [N]; away is 0."""
        self.values.lerp_(push.clamp(min=0.0), STEP_DT / EFFORT_TIME)

    @property
    def imbalance(self) -> Tensor:
        """(N,) [N] the hardest working robot's effort less the least working one's."""
        return self.values.amax(dim=1) - self.values.amin(dim=1)
