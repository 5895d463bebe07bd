"""HAPPO (Kuba et al. 2022): agents are updated one after another.

Each update is corrected for the updates before it by the factor of their probability ratios.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from harl_mapush.algorithms.on_policy import OnPolicy
from harl_mapush.learning import losses
from harl_mapush.learning.on_policy.minibatches import ActorBatch
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.on_policy.surrogate import actor_batch, rollout_log_probs
from harl_mapush.learning.settings import OnPolicyCfg
from mqe.config import option

_Output = TypeVar("_Output")


@dataclass(frozen=True)
class HappoCfg(OnPolicyCfg):
    """HAPPO's settings."""

    name: str = option("happo", "name of the learning algorithm")
    fixed_order: bool = option(
        False, "updates in the order of the agents' numbers instead of a random order"
    )


class Happo(OnPolicy):
    """Sequential clipped updates in random agent order with the cumulative ratio factor."""

    cfg: HappoCfg
    is_capturable = True  # whether an agent's turn never waits for the host

    def update_actors(self, storage: Storage) -> dict[int, dict[str, Tensor]]:
        if self.cfg.fixed_order:
            order = list(range(self.num_agents))
        else:
            order = self.shuffle.agents(self.num_agents)

        storage.next_factor.fill_(1.0)
        metrics = {}
        for agent in order:
            metrics[agent], before = self._captured(self._take_turn, storage, agent)
            if agent != order[-1]:
                self._captured(self._update_factor, storage, agent, before)
        return metrics

    def update_actor(self, agent: int, batch: ActorBatch) -> dict[str, Tensor]:
        """Update one agent's actor on its batch. Return its metrics."""
        return self.update_policy(agent, [batch])

    def _captured(
        self, part: Callable[..., _Output], storage: Storage, agent: int, *inputs: Tensor
    ) -> _Output:
        """Run one part of an agent's turn, as a CUDA graph if possible."""
        work = partial(part, storage, agent)
        if not self.is_capturable:
            return work(*inputs)
        return self.graphs((part.__name__, agent), work, *inputs, over=storage)

    def _take_turn(self, storage: Storage, agent: int) -> tuple[dict[str, Tensor], Tensor]:
        """Update one actor.

        Return its metrics, and its log probabilities (T, N, U) before the update.
        """
        storage.factor[agent] = storage.next_factor
        actor = self.actors[agent]
        before = storage.log_probs[agent][..., : actor.action_size]
        if self.cfg.share_param:  # an agent before this one changed the network
            before = rollout_log_probs(actor, storage, agent)
        advantages = self.advantages(storage)[agent]
        length = self.value.chunk_length(storage)
        batch = actor_batch(actor, storage, agent, advantages, length)
        return self.update_actor(agent, batch), before

    def _update_factor(self, storage: Storage, agent: int, before: Tensor) -> None:
        """Multiply the next agents' factor by this agent's probability ratio."""
        after = rollout_log_probs(self.actors[agent], storage, agent)
        ratio = losses.factor_ratio(after, before)
        if self.spec.presence is not None:
            # Absent agents' ratios do not weigh the others' advantages.
            ratio = torch.where(storage.active[agent, :-1] > 0.0, ratio, 1.0)
        storage.next_factor.mul_(ratio)
