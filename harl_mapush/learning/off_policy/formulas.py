"""Off-policy learning formulas with replaceable variants.

``Team`` chooses the variant ``algorithm.compat`` when it builds an algorithm. B rows, A
agents, G critic views.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.learning.formula_sets import OFF_POLICY_FORMULAS, FormulaSet
from harl_mapush.learning.normalization import ReturnNorm
from harl_mapush.learning.off_policy import td
from harl_mapush.learning.off_policy.replay_buffer import Transition
from harl_mapush.learning.settings import NetworkCfg, OffPolicyCfg

STD_RANGE = (0.02, 1.0)  # of the actions before tanh
_RETURN_BOUND = 5.0  # of scaled returns


class OffPolicyFormulas:
    """Scales, targets and temperatures. Variants inherit from this class."""

    takes_first_reward = False  # whether a single view learns from agent 0's own reward
    has_symmetries = True  # whether batches may show images of transitions
    fits_beside = True  # whether updates may run beside the collecting
    ends_apart = False  # whether an agent of FP states that dies alone ends its own sum of rewards

    def __init__(self, ranks: Ranks = ALONE) -> None:
        """Compute statistics over the rows of all ``ranks``."""
        self.ranks = ranks

    # Actors

    def last_activation(self, network: NetworkCfg) -> str:
        """Return the activation of a squashed actor's last hidden layer."""
        return network.activation

    def log_std(self, raw: Tensor) -> Tensor:
        """Bound the logarithm of a standard deviation."""
        low, high = map(math.log, STD_RANGE)
        return low + 0.5 * (high - low) * (torch.tanh(raw) + 1.0)

    def actor_weights(self, weights: Tensor | None) -> Tensor | None:
        """Return the weights (B,) of a deterministic actor's loss."""
        return weights

    def num_shared_target_moves(self, num_agents: int) -> int:
        """Return how often an update moves a shared actor's target."""
        return 1

    # Critics

    def deterministic(self, cfg: OffPolicyCfg) -> OffPolicyCfg:
        """Return the settings with effect on the critics of deterministic actors."""
        return cfg

    def critic_weights(self, active: Tensor) -> Tensor | None:
        """Return the weights (B, A) of the critics' errors from active (B, A), for FP states."""
        return active

    def second_critic_share(self, cfg: OffPolicyCfg, active: Tensor) -> float:
        """Return the weight of the second critic's loss for active (B, A) and FP states."""
        return 1.0

    def normalizer(self) -> nn.Module:
        """Build the normaliser of rewards or values."""
        return ReturnNorm(_RETURN_BOUND)

    def update_norm(
        self, normalizer: nn.Module, transition: Transition, discounted: Tensor, gamma: float
    ) -> None:
        """Update the normaliser of rewards by one decision.

        ``discounted`` (N, G) are the discounted returns so far, updated in place.
        """
        assert isinstance(normalizer, ReturnNorm)
        valid = transition.valid.to(discounted.dtype)
        discounted.mul_(gamma).add_(transition.rewards * valid.unsqueeze(1))
        weights = valid.unsqueeze(1).expand_as(discounted)
        normalizer.update(discounted.unsqueeze(-1), weights, self.ranks)
        has_ended = transition.done | ~transition.valid
        discounted.masked_fill_(has_ended.unsqueeze(1), 0.0)

    def target(
        self,
        returns: Tensor,
        discount: Tensor,
        values: Tensor,
        bonus: Tensor | float,
        normalizer: nn.Module,
        cfg: OffPolicyCfg,
    ) -> Tensor:
        """Return the critics' targets (B, G) from discounted next values and the entropy bonus.

        ``values`` are the minimum over both target critics.
        """
        assert isinstance(normalizer, ReturnNorm)
        return td.td_target(returns * normalizer.scale(), discount, values + bonus)

    # Temperatures

    def temperatures(self, num_agents: int, start: float, *, is_automatic: bool) -> Tensor:
        """Return the initial temperatures: one per agent, HARL's with one more for the critics."""
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
        """Return all log temperatures' gradients.

        ``log_probs`` are each agent's log probabilities (B,). ``active`` is (B, A).
        """
        triples = zip(log_probs, targets, active.unbind(1), strict=True)
        return torch.stack([td.temperature_gradient(*triple) for triple in triples])


OFF_POLICY_FORMULAS.register("mapush", FormulaSet(OffPolicyFormulas))
