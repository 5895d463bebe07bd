"""HAPPO (Kuba et al. 2022): agents improve one after another, each weighing what those before it changed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harl_mapush.algorithms import losses
from harl_mapush.algorithms.on_policy import OnPolicy
from harl_mapush.algorithms.settings import OnPolicyCfg
from harl_mapush.algorithms.surrogate import actor_batch, improve, rollout_log_probs
from harl_mapush.storage import ActorBatch, Storage


@dataclass(frozen=True)
class HappoCfg(OnPolicyCfg):
    """HAPPO's settings."""

    name: str = "happo"
    fixed_order: bool = False  # agents in their own order instead of a random one


class Happo(OnPolicy):
    """Sequential clipped updates in random agent order with the cumulative ratio factor."""

    cfg: HappoCfg

    def update_actors(self, storage: Storage) -> dict[int, dict[str, Tensor]]:
        order = list(range(self.num_agents)) if self.cfg.fixed_order else self.shuffle.agents(self.num_agents)
        factor = torch.ones_like(storage.factor[0])
        advantages = self.advantages(storage)
        metrics = {}
        for agent in order:
            actor = self.actors[agent]
            storage.factor[agent] = factor
            before = self._log_probs_before(storage, agent)
            batch = actor_batch(actor, storage, agent, advantages[agent], self.chunk_length(storage))
            metrics[agent] = self.improve_actor(agent, batch)
            if agent != order[-1]:
                after = rollout_log_probs(actor, storage, agent)
                factor = factor * losses.factor_ratio(after, before, self.cfg.action_aggregation)
        return metrics

    def improve_actor(self, agent: int, batch: ActorBatch) -> dict[str, Tensor]:
        """Take one agent's turn."""
        return improve(self.actors[agent], self.optimizer(agent), [batch], self.cfg, self.cfg.clip_param, self.shuffle)

    def _log_probs_before(self, storage: Storage, agent: int) -> Tensor:
        actor = self.actors[agent]
        if self.cfg.share_param:  # an agent before this one changed the network
            return rollout_log_probs(actor, storage, agent)
        return storage.log_probs[agent][..., : actor.action_size]
