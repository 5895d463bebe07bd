"""HATD3 (Zhong et al. 2024): deterministic actors updated one after another, delayed, with
smoothed targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harl_mapush.algorithms.off_policy import OffPolicy
from harl_mapush.algorithms.team import make_actors
from harl_mapush.learning.off_policy import td
from harl_mapush.learning.off_policy.q_networks import DeterministicActor
from harl_mapush.learning.off_policy.settings import OffPolicyCfg
from harl_mapush.learning.off_policy.target_networks import targets_of
from mqe.config import option


@dataclass(frozen=True)
class Hatd3Cfg(OffPolicyCfg):
    """HATD3's settings."""

    name: str = option("hatd3", "which algorithm")
    policy_delay: int = option(2, "critic updates per actor update", min=1, max=1000)
    use_huber_loss: bool = option(False, "of values that are numbers; false: squares")
    exploration_noise: tuple[float, float] = option(
        (0.05, 0.8), "standard deviation, from the first world to the last", min=0.0
    )
    policy_noise: float = option(0.2, "on the actions of the critics' targets", min=0.0)
    noise_clip: float = option(0.5, "of policy_noise", min=0.0)


@dataclass(frozen=True)
class Matd3Cfg(Hatd3Cfg):
    """MATD3's settings: one shared actor, updated with the other agents' actions from the replay
    buffer.
    """

    name: str = option("matd3", "which algorithm")
    share_param: bool = option(True, "one actor for all agents")
    is_sequential: bool = option(
        False, "each agent learns beside the others' newest actions, not those of the replay"
    )


class Hatd3(OffPolicy):
    """Deterministic actors with target networks that follow them slowly."""

    cfg: Hatd3Cfg
    follows_first_critic = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        targets, pairs = targets_of(self.unique_actors, self.optimizers)
        self.target_actors = targets * self.num_agents if self.cfg.share_param else targets
        self.targets += pairs

    def _make_actors(self) -> list[DeterministicActor]:
        return make_actors(
            partial(DeterministicActor, self.network), self.spec, is_shared=self.cfg.share_param
        )

    def explore(self, obs: Tensor) -> Tensor:
        actions = self._act(obs)
        low, high = self.cfg.exploration_noise
        first, num_worlds = self.world_share or (0, len(obs))
        scales = torch.linspace(low, high, num_worlds * self.ranks.size, device=self.device)
        scales = self.ranks.part(scales)[first : first + len(obs)].view(-1, 1, 1)
        own = self._own((actions + scales * self.noise(*actions.shape)).clamp(-1.0, 1.0))
        return self.stacked(own)

    def decide(self, agent: int, obs: Tensor) -> tuple[Tensor, None]:
        return self.actors[agent](self.own_obs(agent, obs)), None

    def next_decisions(self, obs: Tensor) -> tuple[Tensor, float]:
        actions = []
        for agent, actor in enumerate(self.target_actors):
            action = actor(self.own_obs(agent, obs))
            noise = td.clipped_noise(
                self.noise(*action.shape), self.cfg.policy_noise, self.cfg.noise_clip
            )
            actions.append((action + noise).clamp(-1.0, 1.0))
        return torch.cat(actions, dim=-1), 0.0

    def actor_loss(
        self, agent: int, values: Tensor, log_probs: Tensor | None, weights: Tensor | None
    ) -> Tensor:
        return -td.weighted_mean(values[0].mean(-1), self.arithmetic.actor_weights(weights))
