"""HASAC (Liu et al. 2023): soft actors are updated one after another.

Each actor is updated with the new actions of the actors before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harl_mapush.algorithms.off_policy import OffPolicy
from harl_mapush.learning.off_policy import td
from harl_mapush.learning.off_policy.q_networks import SquashedActor
from harl_mapush.learning.off_policy.replay_buffer import Batch
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.settings import OffPolicyCfg
from mqe.config import option


@dataclass(frozen=True)
class HasacCfg(OffPolicyCfg):
    """HASAC's settings."""

    name: str = option("hasac", "name of the learning algorithm")
    auto_alpha: bool = option(
        True, "automatic tuning of the temperatures, to an entropy of the actions set by target_std"
    )
    alpha: float = option(
        0.01,
        "temperature (weight of the entropy), or its initial value with auto_alpha",
        min=1e-9,
        max=100.0,
    )
    alpha_learning_rate: float = option(
        3e-4, "learning rate of the temperatures", min=1e-30, max=100.0
    )
    target_std: float = option(
        0.15,
        "standard deviation of a normal distribution with the target entropy per action dimension; "
        "under compat=harl that entropy is -1",
        min=1e-3,
        max=10.0,
    )


@dataclass(frozen=True)
class MasacCfg(HasacCfg):
    """MASAC's settings: one shared actor, updated beside the other agents' stored actions."""

    name: str = option("masac", "name of the learning algorithm")
    share_param: bool = option(True, "one actor shared by all agents")
    is_sequential: bool = option(
        False,
        "updates of the actors one after another, each given the others' newest actions; false: "
        "given the actions in the replay buffer",
    )


class Temperatures(nn.Module):
    """Logarithms of the temperatures: one per agent, and under compat=harl one for the critics."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(start.log())


class Hasac(OffPolicy):
    """Squashed Gaussian actors, entropy in the critics' targets, one temperature per agent."""

    cfg: HasacCfg
    actor_class = SquashedActor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        cfg = self.cfg
        start = self.formulas.temperatures(self.num_agents, cfg.alpha, is_automatic=cfg.auto_alpha)
        self.temperatures = Temperatures(start).to(self.device)
        self.alpha_optimizer = FlatAdam(
            self.temperatures, cfg.alpha_learning_rate, cfg.adam_eps, 0.0, self.ranks, fuses=True
        )
        target_entropy = self.formulas.target_entropy(cfg.target_std)
        self.target_entropies = [size * target_entropy for size in self.spec.action_sizes]

    # Acting

    def actor_options(self) -> dict[str, Any]:
        return {
            "bound_log_std": self.formulas.log_std,
            "last_activation": self.formulas.last_activation(self.network),
        }

    def explore(self, obs: Tensor) -> Tensor:
        return self.stacked(self.decide_all(obs)[0])

    def decide(self, agent: int, obs: Tensor) -> tuple[Tensor, Tensor]:
        actor: SquashedActor = self.actors[agent]
        return actor.sample(self.own_obs(agent, obs), self.noise(len(obs), actor.action_size))

    def decide_all(self, obs: Tensor) -> tuple[list[Tensor], list[Any]]:
        """Return every agent's actions (B, U) and log probabilities (B,).

        A shared actor decides for all agents in one pass.
        """
        if not self.cfg.share_param:
            return super().decide_all(obs)
        actor: SquashedActor = self.actors[0]
        noise = [self.noise(len(obs), actor.action_size) for _ in self.actors]
        actions, log_probs = actor.sample(obs[..., : actor.obs_size], torch.stack(noise, dim=1))
        return list(actions.unbind(1)), list(log_probs.unbind(1))

    # Learning

    @property
    def alpha(self) -> Tensor:
        """Temperatures, one per agent. Under compat=harl the last belongs to the critics."""
        return torch.exp(self.temperatures.log_alpha.detach())

    def next_decisions(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        actions, log_probs = self.decide_all(obs)
        alpha = self.formulas.critic_temperatures(self.alpha, self.num_agents)
        entropies = -torch.stack(log_probs, dim=-1) * alpha
        if self.spec.presence is not None:
            entropies = entropies * obs[..., self.spec.presence]
        bonus = entropies.sum(-1)
        return torch.cat(actions, dim=-1), bonus

    def actor_loss(
        self, agent: int, values: Tensor, log_probs: Tensor | None, weights: Tensor | None
    ) -> Tensor:
        assert log_probs is not None
        gain = values.amin(0) - self.alpha[agent] * log_probs.unsqueeze(-1)
        return -td.weighted_mean(gain.mean(-1), weights)

    def after_actors(self, log_probs: Sequence[Tensor | None], batch: Batch) -> dict[str, Tensor]:
        """Update the temperatures."""
        detached = [x.detach() for x in log_probs if x is not None]
        metrics = {f"agent{i}/entropy": -x.mean() for i, x in enumerate(detached)}
        if self.cfg.auto_alpha:
            gradients = self.formulas.temperature_gradients(
                detached, self.target_entropies, batch.active
            )
            self.alpha_optimizer.grad.copy_(gradients)
            self.alpha_optimizer.share(None)
            self.alpha_optimizer.step(0.0)
        for i, alpha in enumerate(self.alpha[: self.num_agents]):
            metrics[f"agent{i}/alpha"] = alpha
        return metrics

    # Saving

    @property
    def weights(self) -> dict[str, Tensor]:
        weights = super().weights
        if self.cfg.auto_alpha:
            weights["temperatures"] = self.alpha_optimizer.flat
        return weights

    def state_parts(self) -> dict[str, Any]:
        return super().state_parts() | {"temperatures": self.temperatures}

    def _all_optimizers(self) -> list[FlatAdam]:
        return [*super()._all_optimizers(), self.alpha_optimizer]
