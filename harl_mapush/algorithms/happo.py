"""HAPPO (Kuba et al. 2022): agents are updated one after another, each corrected for the updates
before its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from torch import Tensor

from harl_mapush.algorithms.on_policy import OnPolicy
from harl_mapush.learning import losses
from harl_mapush.learning.on_policy.minibatches import ActorBatch
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.on_policy.settings import OnPolicyCfg
from harl_mapush.learning.on_policy.surrogate import actor_batch, rollout_log_probs
from mqe.config import option

_Output = TypeVar("_Output")


@dataclass(frozen=True)
class HappoCfg(OnPolicyCfg):
    """HAPPO's settings."""

    name: str = option("happo", "which algorithm")
    fixed_order: bool = option(False, "agents in their own order instead of a random one")


class Happo(OnPolicy):
    """Sequential clipped updates in random agent order with the cumulative ratio factor."""

    cfg: HappoCfg
    is_capturable = True  # whether a turn never waits for the host

    def update_actors(self, storage: Storage) -> dict[int, dict[str, Tensor]]:
        if self.cfg.fixed_order:
            order = list(range(self.num_agents))
        else:
            order = self.shuffle.agents(self.num_agents)
        storage.next_factor.fill_(1.0)
        metrics = {}
        for agent in order:
            metrics[agent], before = self._replayed(self._take_turn, storage, agent)
            if agent != order[-1]:
                self._replayed(self._update_factor, storage, agent, before)
        return metrics

    def _replayed(
        self, part: Callable[..., _Output], storage: Storage, agent: int, *inputs: Tensor
    ) -> _Output:
        """Run one part of an agent's turn, as a CUDA graph where that is possible."""
        work = partial(part, storage, agent)
        if self.is_capturable:
            return self.replay((part.__name__, agent), work, *inputs, over=storage)
        return work(*inputs)

    def _take_turn(self, storage: Storage, agent: int) -> tuple[dict[str, Tensor], Tensor]:
        """Update one actor; return its metrics and its log probabilities (T, N, U) from before the
        update.
        """
        actor = self.actors[agent]
        storage.factor[agent] = storage.next_factor
        before = self._log_probs_before(storage, agent)
        batch = actor_batch(
            actor, storage, agent, self.advantages(storage)[agent], self.chunk_length(storage)
        )
        return self.update_actor(agent, batch), before

    def _update_factor(self, storage: Storage, agent: int, before: Tensor) -> None:
        """Multiply the factor of the agents after this one by the ratio of its probabilities."""
        after = rollout_log_probs(self.actors[agent], storage, agent)
        storage.next_factor.mul_(losses.factor_ratio(after, before, self.cfg.action_aggregation))

    def update_actor(self, agent: int, batch: ActorBatch) -> dict[str, Tensor]:
        """Update one agent's actor on its batch; return its metrics."""
        return self.update_policy(agent, [batch], self.cfg.clip_param)

    def _log_probs_before(self, storage: Storage, agent: int) -> Tensor:
        actor = self.actors[agent]
        if self.cfg.share_param:  # an agent before this one changed the network
            return rollout_log_probs(actor, storage, agent)
        return storage.log_probs[agent][..., : actor.action_size]
