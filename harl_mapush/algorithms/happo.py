"""HAPPO (Kuba et al. 2022): agents improve one after another, each weighing what those before it changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from torch import Tensor

from harl_mapush.algorithms.on_policy import OnPolicy
from harl_mapush.learning import losses
from harl_mapush.learning.minibatches import ActorBatch
from harl_mapush.learning.settings import OnPolicyCfg
from harl_mapush.learning.storage import Storage
from harl_mapush.learning.surrogate import actor_batch, rollout_log_probs

_Output = TypeVar("_Output")


@dataclass(frozen=True)
class HappoCfg(OnPolicyCfg):
    """HAPPO's settings."""

    name: str = "happo"
    fixed_order: bool = False  # agents in their own order instead of a random one


class Happo(OnPolicy):
    """Sequential clipped updates in random agent order with the cumulative ratio factor."""

    cfg: HappoCfg
    is_capturable = True  # whether a turn never asks the host

    def update_actors(self, storage: Storage) -> dict[int, dict[str, Tensor]]:
        order = list(range(self.num_agents)) if self.cfg.fixed_order else self.shuffle.agents(self.num_agents)
        storage.next_factor.fill_(1.0)
        metrics = {}
        for agent in order:
            metrics[agent], before = self._replayed(self._turn, storage, agent)
            if agent != order[-1]:
                self._replayed(self._pass_on, storage, agent, before)
        return metrics

    def _replayed(self, part: Callable[..., _Output], storage: Storage, agent: int, *inputs: Tensor) -> _Output:
        """Do one part of an agent's turn, as a graph where that can be."""
        work = partial(part, storage, agent)
        return self.replay((part.__name__, agent), work, *inputs, over=storage) if self.is_capturable else work(*inputs)

    def _turn(self, storage: Storage, agent: int) -> tuple[dict[str, Tensor], Tensor]:
        """Improve one actor; give its metrics and the log probabilities (T, N, U) it had before."""
        actor = self.actors[agent]
        storage.factor[agent] = storage.next_factor
        before = self._log_probs_before(storage, agent)
        batch = actor_batch(actor, storage, agent, self.advantages(storage)[agent], self.chunk_length(storage))
        return self.improve_actor(agent, batch), before

    def _pass_on(self, storage: Storage, agent: int, before: Tensor) -> None:
        """Weigh what one actor changed into the factor of the agents after it."""
        after = rollout_log_probs(self.actors[agent], storage, agent)
        storage.next_factor.mul_(losses.factor_ratio(after, before, self.cfg.action_aggregation))

    def improve_actor(self, agent: int, batch: ActorBatch) -> dict[str, Tensor]:
        """Take one agent's turn."""
        return self.update_policy(agent, [batch], self.cfg.clip_param)

    def _log_probs_before(self, storage: Storage, agent: int) -> Tensor:
        actor = self.actors[agent]
        if self.cfg.share_param:  # an agent before this one changed the network
            return rollout_log_probs(actor, storage, agent)
        return storage.log_probs[agent][..., : actor.action_size]
