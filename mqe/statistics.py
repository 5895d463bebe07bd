"""Figures of finished episodes, kept on the device in a ring of bounded length."""

from __future__ import annotations

import torch
from torch import Tensor

CAPACITY = 1000  # episodes; older ones are forgotten
ENDINGS = ("success", "collision", "fall")  # figures that are 0 or 1


class EpisodeStatistics:
    """The last at most 1,000 finished episodes, one row each; reading them is the only host synchronisation."""

    def __init__(self, names: tuple[str, ...], device: torch.device) -> None:
        """Keep the figures ``names`` of every episode."""
        self.names = names
        self._rows = torch.full((CAPACITY + 1, len(names)), torch.nan, device=device)  # the last row takes the rest
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def record(self, done: Tensor, figures: dict[str, Tensor]) -> None:
        """Add the episodes of ``done`` (N,), with ``figures`` (N,) each."""
        place = self._count + torch.cumsum(done, 0) - 1
        last = self._count + done.sum()
        recent = done & (place >= last - CAPACITY)  # more than fit end at once: keep the newest rows only
        slot = torch.where(recent, place % CAPACITY, CAPACITY)
        self._rows.index_copy_(0, slot, torch.stack([figures[name].to(self._rows.dtype) for name in self.names], 1))
        self._count.copy_(last)

    def means(self) -> dict[str, float]:
        """Give each figure's mean over the episodes it counts for (NaN without any), and ``num_episodes``.

        The mean of an ending that happened or not, 1 or 0, is called its rate: ``success_rate``.
        """
        means = torch.nanmean(self._rows[:CAPACITY], dim=0).tolist()
        names = [f"{name}_rate" if name in ENDINGS else name for name in self.names]
        figures: dict[str, float] = dict(zip(names, means, strict=True))
        return figures | {"num_episodes": min(int(self._count), CAPACITY)}

    def reset(self) -> None:
        """Forget everything."""
        self._rows.fill_(torch.nan)
        self._count.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        """The ring and its position."""
        return {"rows": self._rows.clone(), "count": self._count.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state_dict``."""
        self._rows.copy_(state["rows"])
        self._count.copy_(state["count"])
