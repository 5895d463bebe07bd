"""OpenRL's PPO as MAPush's published policies were trained with it: ``--algo openrl_ppo``.

    cd benchmarks; mapush train --import mapush_ppo --config mapush_ppo.yaml --seed 1

It differs from IPPO under ``algorithm.compat=harl``: each action dimension has a probability ratio
and a clip of its own, the standard deviation is exp(log_std) without a bound, the last hidden layer
has no activation, and the trainer halves the policy's output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import mapush
from harl_mapush.algorithms.ippo import Ippo, IppoCfg
from harl_mapush.learning import losses
from harl_mapush.learning.networks import Actor, GaussianHead
from harl_mapush.learning.on_policy.minibatches import ActorBatch
from harl_mapush.learning.settings import NetworkCfg
from mapush.extensions.openrl.mapush_policies import ACTION_FACTOR
from mqe.config import option


@dataclass(frozen=True)
class OpenRLPpoCfg(IppoCfg):
    """The algorithm's settings."""

    name: str = option("openrl_ppo", "name of the learning algorithm")
    share_param: bool = option(True, "one actor shared by all agents")


class Halving(nn.Linear):
    """The trainer's factor on the policy's output, as a layer that checkpoints can declare."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        del self.weight, self.bias
        self.register_buffer("weight", ACTION_FACTOR * torch.eye(size))
        self.register_buffer("bias", torch.zeros(size))


class UnboundedHead(GaussianHead):
    """A linear layer for the mean, and exponentials of parameters for the deviations."""

    def __init__(self, cfg: NetworkCfg, in_size: int, action_size: int) -> None:
        super().__init__(cfg, in_size, action_size)
        nn.init.zeros_(self.log_std)
        self.factor = Halving(action_size)

    def layers(self) -> list[nn.Module]:
        return [self.fc_mean, self.factor]

    def std(self) -> Tensor:
        return ACTION_FACTOR * self.log_std.exp()


class OpenRLActor(Actor):
    """A Gaussian policy whose deviations begin at 1 before the trainer's factor."""

    def __init__(self, cfg: NetworkCfg, obs_size: int, action_size: int, sets: Any = ()) -> None:
        super().__init__(cfg, obs_size, action_size, sets)
        _remove_last_activation(self)
        head = UnboundedHead(cfg, cfg.hidden_sizes[-1], action_size)
        self.act = nn.ModuleDict({"action_out": head})


class OpenRLPpo(Ippo):
    """One actor and one critic for all robots, both with a robot's own observation."""

    actor_class = OpenRLActor
    cfg: OpenRLPpoCfg

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _remove_last_activation(self.critic)

    def update_policy(self, agent: int, batches: list[ActorBatch]) -> dict[str, Tensor]:
        """Maximise the sum of the dimensions' clipped objectives. Return mean metrics."""
        cfg = self.cfg
        actor = self.actors[agent]
        optimizer = self.optimizer(agent)
        names = ("policy_loss", "dist_entropy", "ratio", "kl", "actor_grad_norm")
        sums = torch.zeros(len(names), device=self.device)
        for batch in self.formulas.minibatches(
            batches, cfg.num_epochs, cfg.num_minibatches, self.shuffle
        ):
            std = actor.std()
            log_probs = losses.gaussian_log_prob(batch.actions, actor(batch.obs), std)
            log_ratio = log_probs - batch.log_probs
            gain = objective(log_ratio, batch.advantages, cfg.clip_param)
            policy_loss = -(gain * batch.weights).sum() / batch.weights.sum().clamp(min=1.0)
            entropy = losses.gaussian_entropy(std)

            optimizer.zero_grad()
            optimizer.add_gradient(policy_loss - cfg.entropy_coef * entropy)
            norm = optimizer.step(cfg.max_grad_norm)
            kl = (torch.expm1(log_ratio.sum(-1)) - log_ratio.sum(-1)).mean()
            stats = (policy_loss, entropy, log_ratio.exp().mean(), kl, norm)
            sums += torch.stack([value.detach() for value in stats])

        means = sums / (cfg.num_epochs * cfg.num_minibatches)
        return {
            **dict(zip(names, means.unbind(), strict=True)),
            "std": actor.std().detach().mean(),
            "learning_rate": optimizer.learning_rate.clone(),
        }


def objective(log_ratio: Tensor, advantages: Tensor, clip_param: float) -> Tensor:
    """Return the objective (L, B) of actions with log ratios (L, B, U) and advantages (L, B).

    Each dimension has PPO's surrogate, and the objective is their sum.
    """
    ratio = log_ratio.exp()
    return losses.clipped_surrogate(ratio, advantages.unsqueeze(-1), clip_param).sum(-1)


def _remove_last_activation(network: Any) -> None:
    network.base.mlp["fc"][-2] = nn.Identity()


mapush.register_algorithm("openrl_ppo", OpenRLPpoCfg, OpenRLPpo)
