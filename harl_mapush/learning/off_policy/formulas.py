"""The off-policy arithmetic, this project's and upstream HARL's: ``OffPolicyCfg.arithmetic`` picks
one of them.

B rows, A agents, G critic views.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.learning.networks import NetworkCfg
from harl_mapush.learning.normalization import ReturnNorm, ValueNorm
from harl_mapush.learning.off_policy import td

if TYPE_CHECKING:
    from harl_mapush.learning.off_policy.settings import OffPolicyCfg

_HARL_LOG_STD = (-20.0, 2.0)
_HARL_ENTROPY = -1.0  # aimed at, an action dimension [nat]


class OffPolicyArithmetic:
    """Our own formulas; ``HarlOffPolicyArithmetic`` has the same members."""

    takes_first_reward = False  # whether one view is rewarded with agent 0's own reward
    has_atoms = True  # whether values may be categorical
    has_model = True  # whether a learned model of the worlds may help
    has_mirror = True  # whether transitions may be mirrored

    def __init__(self, ranks: Ranks = ALONE) -> None:
        """Take statistics over the rows of all ``ranks``."""
        self.ranks = ranks

    def network(self, network: NetworkCfg) -> NetworkCfg:
        """Return the settings of the networks that are built where ``network`` is asked for."""
        return network

    def last_activation(self, network: NetworkCfg) -> str:
        """Return the activation of a squashed actor's last hidden layer."""
        return network.activation

    def log_std(self, raw: Tensor, std_range: tuple[float, float]) -> Tensor:
        """Bound the logarithm of a standard deviation."""
        low = math.log(std_range[0])
        high = math.log(std_range[1])
        return low + 0.5 * (high - low) * (torch.tanh(raw) + 1.0)

    def normalizer(self, cfg: OffPolicyCfg) -> nn.Module:
        """Build what rewards, or values, are scaled by."""
        return ReturnNorm(cfg.value_bound)

    def scaled(self, returns: Tensor, normalizer: nn.Module, cfg: OffPolicyCfg) -> Tensor:
        """Return sums of rewards in the critics' units."""
        assert isinstance(normalizer, ReturnNorm)
        return returns * normalizer.scale() if cfg.normalize_returns else returns

    def target(
        self,
        returns: Tensor,
        discount: Tensor,
        values: Tensor,
        bonus: Tensor | float,
        normalizer: nn.Module,
        cfg: OffPolicyCfg,
    ) -> Tensor:
        """Return the critics' targets (B, G), from the lower of their next values and the entropy
        bonus.
        """
        return td.td_target(self.scaled(returns, normalizer, cfg), discount, values + bonus)

    def actor_weights(self, weights: Tensor | None) -> Tensor | None:
        """Return the weights (B,) of a deterministic actor's loss."""
        return weights

    def temperatures(self, num_agents: int, start: float, *, is_automatic: bool) -> Tensor:
        """Return the temperatures at the start: one an agent, HARL's with one more for the
        critics.
        """
        return torch.full((num_agents,), start)

    def critic_temperatures(self, alpha: Tensor, num_agents: int) -> Tensor:
        """Return the temperatures (A,) of the agents' entropy in the critics' targets."""
        return alpha

    def target_entropy(self, std: float) -> float:
        """Return the target entropy per action dimension [nat]."""
        return td.gaussian_entropy(std)

    def temperature_gradients(
        self, log_probs: list[Tensor], targets: Sequence[float], active: Tensor
    ) -> Tensor:
        """Return the gradients of all log temperatures, from log probabilities (B,) an agent and
        active (B, A).
        """
        triples = zip(log_probs, targets, active.unbind(1), strict=True)
        return torch.stack([td.temperature_gradient(*triple) for triple in triples])


class HarlOffPolicyArithmetic(OffPolicyArithmetic):
    """The formulas that differ."""

    takes_first_reward = True
    has_atoms = False
    has_model = False
    has_mirror = False

    def network(self, network: NetworkCfg) -> NetworkCfg:
        return dataclasses.replace(network, use_layer_norm=False, normalize_obs=False)

    def last_activation(self, network: NetworkCfg) -> str:
        return "tanh"

    def log_std(self, raw: Tensor, std_range: tuple[float, float]) -> Tensor:
        return raw.clamp(*_HARL_LOG_STD)

    def normalizer(self, cfg: OffPolicyCfg) -> nn.Module:
        return ValueNorm()

    def target(
        self,
        returns: Tensor,
        discount: Tensor,
        values: Tensor,
        bonus: Tensor | float,
        normalizer: nn.Module,
        cfg: OffPolicyCfg,
    ) -> Tensor:
        assert isinstance(normalizer, ValueNorm)
        if not cfg.use_value_norm:
            return td.td_target(returns, discount, values + bonus)
        target = td.td_target(returns, discount, normalizer.denormalize(values) + bonus)
        normalizer.update(target, ranks=self.ranks)
        return normalizer.normalize(target)

    def actor_weights(self, weights: Tensor | None) -> None:
        return None

    def temperatures(self, num_agents: int, start: float, *, is_automatic: bool) -> Tensor:
        return torch.full((num_agents + 1,), 1.0 if is_automatic else start)

    def critic_temperatures(self, alpha: Tensor, num_agents: int) -> Tensor:
        return alpha[-1:].expand(num_agents)

    def target_entropy(self, std: float) -> float:
        return _HARL_ENTROPY

    def temperature_gradients(
        self, log_probs: list[Tensor], targets: Sequence[float], active: Tensor
    ) -> Tensor:
        own = [td.temperature_gradient(*pair) for pair in zip(log_probs, targets, strict=True)]
        return torch.stack(
            [*own, td.temperature_gradient(torch.stack(log_probs).sum(0), sum(targets))]
        )
