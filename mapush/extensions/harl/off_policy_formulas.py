"""Upstream HARL's off-policy formulas, for ``algorithm.compat=harl``."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from harl_mapush.learning.formula_sets import OFF_POLICY_FORMULAS, FormulaSet
from harl_mapush.learning.normalization import ValueNorm
from harl_mapush.learning.off_policy import td
from harl_mapush.learning.off_policy.formulas import OffPolicyFormulas
from harl_mapush.learning.off_policy.replay_buffer import Transition
from harl_mapush.learning.settings import NetworkCfg, OffPolicyCfg

_LOG_STD_RANGE = (-20.0, 2.0)
_TARGET_ENTROPY = -1.0  # per action dimension [nat]


class HarlOffPolicyFormulas(OffPolicyFormulas):
    """HARL's variants of ``OffPolicyFormulas``."""

    takes_first_reward = True
    has_symmetries = False
    fits_beside = False
    ends_apart = True

    def last_activation(self, network: NetworkCfg) -> str:
        return "tanh"

    def log_std(self, raw: Tensor) -> Tensor:
        return raw.clamp(*_LOG_STD_RANGE)

    def actor_weights(self, weights: Tensor | None) -> None:
        return None

    def num_shared_target_moves(self, num_agents: int) -> int:
        return num_agents

    def deterministic(self, cfg: OffPolicyCfg) -> OffPolicyCfg:
        # Upstream's critics of deterministic actors know neither.
        return replace(cfg, use_value_norm=False, use_huber_loss=False)

    def critic_weights(self, active: Tensor) -> None:
        # Upstream multiplies a loss that is a mean already, so that its masks have no effect.
        return None

    def second_critic_share(self, cfg: OffPolicyCfg, active: Tensor) -> float:
        if not cfg.use_huber_loss:
            return 1.0
        # Upstream takes a mean over the masks where the first critic's loss has a sum.
        return 1.0 / (active.numel() * self.ranks.size)

    def normalizer(self) -> nn.Module:
        return ValueNorm()

    def update_norm(
        self, normalizer: nn.Module, transition: Transition, discounted: Tensor, gamma: float
    ) -> None:
        return

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
        gradients = [
            td.temperature_gradient(*pair) for pair in zip(log_probs, targets, strict=True)
        ]
        joint = td.temperature_gradient(torch.stack(log_probs).sum(0), sum(targets))
        return torch.stack([*gradients, joint])


# Upstream's networks have no normalisation.
OFF_POLICY_FORMULAS.register("harl", FormulaSet(HarlOffPolicyFormulas, {"use_layer_norm": False}))
