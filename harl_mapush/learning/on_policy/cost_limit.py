"""A limit on the mean cost, kept by a Lagrange multiplier (Ray, Achiam & Amodei 2019).

A decision's costs are the entries ``cost/...`` in ``TimeStep.info``. The actors learn from the
rewards' advantages less the multiplier times the costs' advantages, so the multiplier is a price:
reward units per cost unit. It rises while the mean cost is above the limit, and falls below it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harl_mapush.distributed.ranks import Ranks
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.on_policy.value_update import ValueLearner


class CostLimit:
    """The multiplier, and the critic of the costs."""

    def __init__(
        self, limit: float, learning_rate: float, value: ValueLearner, ranks: Ranks
    ) -> None:
        """Keep a decision's mean cost below ``limit``. ``value`` learns the costs' values."""
        self.limit = limit
        self.learning_rate = learning_rate
        self.value = value
        self.ranks = ranks
        self.multiplier = torch.zeros((), device=value.optimizer.flat.device)
        self.mean_cost = torch.zeros_like(self.multiplier)

    @torch.no_grad()
    def apply(self, storage: Storage) -> None:
        """Update the multiplier with a full rollout, and charge its advantages for the costs."""
        costs = storage.costs
        assert costs is not None
        self.mean_cost.copy_(mean_cost(costs.rewards, storage.valid, self.ranks))
        self.multiplier.copy_(
            next_multiplier(self.multiplier, self.mean_cost, self.limit, self.learning_rate)
        )
        self.value.compute_values(costs)
        self.value.compute_returns(costs)
        storage.advantages.sub_(self.multiplier * costs.advantages)

    def update_critic(self, storage: Storage) -> dict[str, Tensor]:
        """Train the costs' critic. Return its metrics, the mean cost and the multiplier."""
        assert storage.costs is not None
        metrics = self.value.update(storage.costs)
        self.value.update_obs_norm(storage)
        return metrics | {
            "mean_cost": self.mean_cost.clone(),
            "multiplier": self.multiplier.clone(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state of multiplier and critic."""
        return {"multiplier": self.multiplier.clone(), "value": self.value.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self.multiplier.copy_(state["multiplier"])
        self.value.load_state_dict(state["value"])


def mean_cost(costs: Tensor, valid: Tensor, ranks: Ranks) -> Tensor:
    """Return the mean cost (0-dim) over all ranks' ``valid`` (T, N) decisions, from costs (T, N,
    V).
    """
    sums = torch.stack(((costs.mean(dim=-1) * valid).sum(), valid.sum()))
    ranks.sum_(sums)
    return sums[0] / sums[1].clamp(min=1.0)


def next_multiplier(multiplier: Tensor, cost: Tensor, limit: float, learning_rate: float) -> Tensor:
    """Return the multiplier (0-dim) after a step of gradient ascent on the Lagrangian."""
    return (multiplier + learning_rate * (cost - limit)).clamp(min=0.0)
