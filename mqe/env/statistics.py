"""Metrics for finished episodes, in a bounded ring on the device."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mqe.notices import note
from mqe.resumable import Resumable
from mqe.vec_env import ALL_WORLDS, Share

CAPACITY = 1000  # episodes; older ones are forgotten


class EpisodeStatistics(Resumable):
    """The last 1,000 finished episodes at most, one row each. Only reading waits for the device."""

    def __init__(
        self,
        names: tuple[str, ...],
        rates: tuple[str, ...],
        num_envs: int,
        device: torch.device,
        share: Share = ALL_WORLDS,
    ) -> None:
        """Keep F metrics ``names`` for every episode in ``num_envs`` worlds. ``rates`` are 0 or 1.

        Means cover all processes with a ``share`` of the worlds. All these processes must request
        means together.
        """
        self.names = names
        self._rates = rates
        self._share = share
        # All worlds may end at once and need a row each.
        self._room = max(CAPACITY, num_envs)
        self._rows = torch.full((self._room + 1, len(names)), torch.nan, device=device)
        # Worlds without a finished episode write into the last row, which nobody reads.
        self._spare = torch.tensor(self._room, device=device)
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def record(self, done: Tensor, metrics: Tensor) -> None:
        """Add the episodes of ``done`` (N,), with ``metrics`` (N, F)."""
        number = self._count + torch.cumsum(done, 0)  # (N,) from 1 on
        self._rows.index_copy_(0, torch.where(done, number % self._room, self._spare), metrics)
        self._count.copy_(number[-1])

    def means(self) -> dict[str, float]:
        """Return each metric's mean over its episodes (NaN without any), and ``num_episodes``.

        The mean of a metric with values 0 or 1 is called its rate.
        """
        newest = self._newest(CAPACITY // self._share.num_shares)
        counts = (~torch.isnan(newest)).sum(dim=0)
        num_episodes = self._count.clamp(max=len(newest)).view(1)
        sums = torch.cat((torch.nansum(newest, dim=0), counts, num_episodes)).double()
        self._share.sum_(sums)
        total, counts, num_episodes = sums.split([len(self.names), len(self.names), 1])
        *values, count = torch.cat((total / counts, num_episodes)).tolist()
        names = [f"{name}_rate" if name in self._rates else name for name in self.names]
        metrics: dict[str, float] = dict(zip(names, values, strict=True))
        return metrics | {"num_episodes": int(count)}

    def reset(self) -> None:
        """Remove all finished episodes."""
        self._rows.fill_(torch.nan)
        self._count.zero_()

    def state_parts(self) -> dict[str, Tensor]:
        """Return the ring and its position."""
        return {"rows": self._rows, "count": self._count}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``. A ring of another length begins anew."""
        if state["rows"].shape != self._rows.shape:
            note("the saved state has another number of worlds, and statistics begin anew")
            return
        super().load_state_dict(state)

    def _newest(self, count_limit: int) -> Tensor:
        """Return the rows of the newest ``count_limit`` episodes, with NaN for missing ones."""
        return self._rows[
            (self._count - torch.arange(count_limit, device=self._count.device)) % self._room
        ]


def weighted_means(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means over all episodes in ``parts``, each with means and ``num_episodes``.

    A metric without episodes is NaN.
    """
    merged: dict[str, float] = {"num_episodes": sum(part["num_episodes"] for part in parts)}
    for name in dict.fromkeys(name for part in parts for name in part if name != "num_episodes"):
        finite_parts = [part for part in parts if math.isfinite(part.get(name, math.nan))]
        num_episodes = sum(part["num_episodes"] for part in finite_parts)
        merged[name] = math.nan
        if num_episodes:
            total = sum(part[name] * part["num_episodes"] for part in finite_parts)
            merged[name] = total / num_episodes
    return merged
