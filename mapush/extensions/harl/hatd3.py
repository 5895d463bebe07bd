"""HATD3 (Zhong et al. 2024): deterministic actors are updated one after another.

Their updates are delayed, and the critics' targets are smoothed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harl_mapush.algorithms.entries import ALGORITHMS, AlgorithmEntry
from harl_mapush.algorithms.off_policy import OffPolicy
from harl_mapush.learning.off_policy import td
from harl_mapush.learning.off_policy.q_networks import Mlp, targets_of
from harl_mapush.learning.settings import NetworkCfg, OffPolicyCfg
from mqe.config import option
from mqe.controllers.set_readers import SetReader
from mqe.vec_env import EntityBlock


@dataclass(frozen=True)
class Hatd3Cfg(OffPolicyCfg):
    """HATD3's settings."""

    name: str = option("hatd3", "name of the learning algorithm")
    policy_delay: int = option(2, "number of critic updates per actor update", min=1, max=1000)
    use_huber_loss: bool = option(
        False, "Huber loss of the values with threshold huber_delta; false: squared error"
    )
    exploration_noise: tuple[float, float] = option(
        (0.05, 0.8),
        "standard deviations of the exploration noise in the first and in the last world",
        min=0.0,
        max=10.0,
    )
    policy_noise: float = option(
        0.2,
        "standard deviation of the noise on the actions in the critics' targets",
        min=0.0,
        max=10.0,
    )
    noise_clip: float = option(
        0.5, "bound of the noise on the actions in the critics' targets", min=0.0, max=10.0
    )


@dataclass(frozen=True)
class Matd3Cfg(Hatd3Cfg):
    """MATD3's settings: a shared actor beside the other agents' actions in the replay buffer."""

    name: str = option("matd3", "name of the learning algorithm")
    share_param: bool = option(True, "one actor shared by all agents")
    is_sequential: bool = option(
        False,
        "updates of the actors one after another, each given the others' newest actions; false: "
        "given the actions in the replay buffer",
    )


class DeterministicActor(nn.Module):
    """A deterministic policy with tanh-bounded actions."""

    def __init__(
        self, cfg: NetworkCfg, obs_size: int, action_size: int, sets: Sequence[EntityBlock] = ()
    ) -> None:
        """Build the networks. ``sets`` are an observation's sets."""
        super().__init__()
        self.obs_size = obs_size
        self.action_size = action_size
        self.sets = SetReader(obs_size, sets, cfg.set_width)
        self.pi = Mlp(cfg, (self.sets.out_size, *cfg.hidden_sizes), cfg.activation)
        self.pi.mlp.extend((nn.Linear(cfg.hidden_sizes[-1], action_size), nn.Tanh()))

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions (..., U) for obs (..., O)."""
        return self.pi(self.sets(obs))

    def layers(self) -> list[nn.Module]:
        """Return the modules of a decision without noise in their order."""
        return [self.sets, self.pi.mlp]


class Hatd3(OffPolicy):
    """Deterministic actors with slowly following target networks."""

    cfg: Hatd3Cfg
    actor_class = DeterministicActor
    follows_first_critic = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        targets, pairs = targets_of(self.unique_actors, self.optimizers)
        self.target_actors = targets * self.num_agents if self.cfg.share_param else targets
        self.targets += pairs
        num_moves = 1
        if self.cfg.share_param:
            num_moves = self.formulas.num_shared_target_moves(self.num_agents)
        self._repeated_moves = pairs * (num_moves - 1)

    @property
    def target_moves(self) -> list[tuple[Tensor, Tensor]]:
        return [*self.targets, *self._repeated_moves]

    # Acting

    def explore(self, obs: Tensor) -> Tensor:
        actions = self.stacked([self.decide(i, obs)[0] for i in range(self.num_agents)])

        # Noise levels of this process's worlds, which may be a part of all.
        low, high = self.cfg.exploration_noise
        first, num_worlds = self.world_share or (0, len(obs))
        scales = torch.linspace(low, high, num_worlds * self.ranks.size, device=self.device)
        scales = self.ranks.part(scales)[first : first + len(obs)].view(-1, 1, 1)

        noisy = (actions + scales * self.noise(*actions.shape)).clamp(-1.0, 1.0)
        return self.stacked(self._own(noisy))

    def decide(self, agent: int, obs: Tensor) -> tuple[Tensor, None]:
        return self.actors[agent](self.own_obs(agent, obs)), None

    # Learning

    def next_decisions(self, obs: Tensor) -> tuple[Tensor, float]:
        cfg = self.cfg
        actions = []
        for agent, actor in enumerate(self.target_actors):
            action = actor(self.own_obs(agent, obs))
            noise = clipped_noise(self.noise(*action.shape), cfg.policy_noise, cfg.noise_clip)
            actions.append((action + noise).clamp(-1.0, 1.0))
        return torch.cat(actions, dim=-1), 0.0

    def actor_loss(
        self, agent: int, values: Tensor, log_probs: Tensor | None, weights: Tensor | None
    ) -> Tensor:
        return -td.weighted_mean(values[0].mean(-1), self.formulas.actor_weights(weights))


def clipped_noise(noise: Tensor, std: float, bound: float) -> Tensor:
    """Scale standard normal ``noise`` and clip it to ``bound`` (Fujimoto et al. 2018)."""
    return (noise * std).clamp(-bound, bound)


ALGORITHMS.register("hatd3", AlgorithmEntry(Hatd3Cfg, Hatd3))
ALGORITHMS.register("matd3", AlgorithmEntry(Matd3Cfg, Hatd3))
