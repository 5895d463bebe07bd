"""Tangled robots: two that stay in contact with one another."""

from __future__ import annotations

from torch import Tensor

from mqe.world.scene import STEP_DT

TANGLE_TIME = 1.0  # [s] two robots in contact for so long without interruption are tangled
# [s] letting go for less is no interruption: legs that are caught in one another still step.
GAP_TIME = 0.1


class TangleTimers:
    """How long each pair of robots has been in contact, and how long ago they touched."""

    SIZE = 2  # numbers a pair

    def __init__(self, values: Tensor) -> None:
        """Keep the timers in ``values`` (N, P, 2) [s]: contact, time since the last touch; zeros
        are robots apart.
        """
        self.values = values

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask`` (N,)."""
        self.values.masked_fill_(mask.view(-1, 1, 1), 0.0)

    def update(self, is_touching: Tensor) -> None:
        """Count one control step at whose end pairs touch or not, (N, P) bool."""
        contact, gap = self.values.unbind(dim=-1)
        gap.add_(STEP_DT).masked_fill_(is_touching, 0.0)
        is_kept = is_touching | ((contact > 0.0) & (gap < GAP_TIME - 0.5 * STEP_DT))
        contact.add_(STEP_DT).mul_(is_kept)

    @property
    def tangled(self) -> Tensor:
        """(N, P) bool: the pair has been in contact for too long."""
        return self.values[..., 0] > TANGLE_TIME - 0.5 * STEP_DT
