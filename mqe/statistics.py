"""Figures of finished episodes, kept on the device in a ring of bounded length."""

from __future__ import annotations

import torch
from torch import Tensor

CAPACITY = 1000  # episodes; older ones are forgotten


class EpisodeStatistics:
    """The last at most 1,000 finished episodes, one row each; reading them is the only host synchronisation."""

    def __init__(self, names: tuple[str, ...], rates: tuple[str, ...], num_envs: int, device: torch.device) -> None:
        """Keep F figures ``names`` of every episode of ``num_envs`` worlds; ``rates`` are those that are 0 or 1."""
        self.names, self._rates = names, rates
        self._room = max(CAPACITY, num_envs)  # all worlds may end at once, each into a row of its own
        self._rows = torch.full((self._room + 1, len(names)), torch.nan, device=device)
        self._spare = torch.tensor(self._room, device=device)  # the last row takes what is no episode
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def record(self, done: Tensor, figures: Tensor) -> None:
        """Add the episodes of ``done`` (N,), with ``figures`` (N, F)."""
        number = self._count + torch.cumsum(done, 0)  # (N,) from 1 on
        self._rows.index_copy_(0, torch.where(done, number % self._room, self._spare), figures)
        self._count.copy_(number[-1])

    def means(self) -> dict[str, float]:
        """Give each figure's mean over the episodes it counts for (NaN without any), and ``num_episodes``.

        The mean of what happened or not, 1 or 0, is called its rate.
        """
        newest = (self._count - torch.arange(CAPACITY, device=self._count.device)) % self._room  # NaN where never used
        means = torch.nanmean(self._rows[newest], dim=0)
        *values, count = torch.cat((means, self._count.clamp(max=CAPACITY).view(1))).tolist()
        names = [f"{name}_rate" if name in self._rates else name for name in self.names]
        figures: dict[str, float] = dict(zip(names, values, strict=True))
        return figures | {"num_episodes": int(count)}

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
