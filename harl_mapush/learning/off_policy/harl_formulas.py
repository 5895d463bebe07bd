"""Upstream HARL's formulas of off-policy learning, for ``algorithm.compat=harl``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from harl_mapush.learning.normalization import ValueNorm
from harl_mapush.learning.off_policy import td
from harl_mapush.learning.off_policy.formulas import OffPolicyFormulas
from harl_mapush.learning.settings import NetworkCfg, OffPolicyCfg

_LOG_STD_RANGE = (-20.0, 2.0)
_TARGET_ENTROPY = -1.0  # per action dimension [nat]


class HarlOffPolicyFormulas(OffPolicyFormulas):
    """HARL's formulas where they differ from ``OffPolicyFormulas``."""

    takes_first_reward = True
    has_atoms = False
    has_model = False
    has_mirror = False

    def last_activation(self, network: NetworkCfg) -> str:
        return "tanh"

    def log_std(self, raw: Tensor, std_range: tuple[float, float]) -> Tensor:
        return raw.clamp(*_LOG_STD_RANGE)

    def actor_weights(self, weights: Tensor | None) -> None:
        return None

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

    def temperatures(self, num_agents: int, start: float, *, is_automatic: bool) -> Tensor:
        return torch.full((num_agents + 1,), 1.0 if is_automatic else start)

    def critic_temperatures(self, alpha: Tensor, num_agents: int) -> Tensor:
        return alpha[-1:].expand(num_agents)

    def target_entropy(self, std: float) -> float:
        return _TARGET_ENTROPY

    def temperature_gradients(
        self, log_probs: list[Tensor], targets: Sequence[float], active: Tensor
    ) -> Tensor:
        own = [td.temperature_gradient(*pair) for pair in zip(log_probs, targets, strict=True)]
        joint = td.temperature_gradient(torch.stack(log_probs).sum(0), sum(targets))
        return torch.stack([*own, joint])
