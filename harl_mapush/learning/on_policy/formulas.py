"""This project's arithmetic, where it differs from upstream HARL's.

``OnPolicyCfg.arithmetic`` picks this set of functions or that of ``harl_arithmetic.py`` where an
algorithm is built; nothing else asks which it is. T decisions, N environments, V values an
environment, U action size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.learning import losses
from harl_mapush.learning.networks import NetworkCfg
from harl_mapush.learning.normalization import ValueNorm, normalize_advantages, rescale_output
from harl_mapush.learning.on_policy.minibatches import Batch, CriticBatch, Shuffle, minibatches
from harl_mapush.learning.on_policy.returns import compute_gae, compute_returns
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.optimizer import FlatAdam

if TYPE_CHECKING:
    from harl_mapush.learning.on_policy.settings import OnPolicyCfg

_BETA = 0.95  # what the value normaliser keeps of the past, an iteration
_VARIANCE_MIN = 1e-4


class Arithmetic:
    """Our own formulas for returns, targets, advantages and ratios; ``HarlArithmetic`` has the
    same members.
    """

    keeps_final_state = True  # of episodes that the clock ended, to bootstrap from

    def __init__(self, ranks: Ranks = ALONE) -> None:
        """Take statistics over the rows of all ``ranks``."""
        self.ranks = ranks

    def network(self, network: NetworkCfg) -> NetworkCfg:
        """Return the settings of the networks that are built where ``network`` is asked for."""
        return network

    def has_own_values(self, state_type: str, team_reward: str) -> bool:
        """Return whether the critic gives every agent a value of its own."""
        return state_type == "FP" or team_reward == "own"

    def joins_advantages(self, num_values: int) -> bool:
        """Return whether the advantages of all agents are normalised together."""
        return False

    def optimizer(self, network: nn.Module, learning_rate: float, cfg: OnPolicyCfg) -> FlatAdam:
        """Build the optimiser of a network."""
        return FlatAdam(network, learning_rate, cfg.adam_eps, cfg.weight_decay, self.ranks)

    def value_normalizer(self, beta: float | None) -> ValueNorm:
        """Build the value normaliser, which forgets with ``beta`` an update."""
        return ValueNorm(_BETA if beta is None else beta, _VARIANCE_MIN)

    def returns(
        self,
        storage: Storage,
        values: Tensor,
        denormalize: Callable[[Tensor], Tensor],
        cfg: OnPolicyCfg,
    ) -> Tensor:
        """Compute returns (T, N, V) from values (T+1, N, V) in reward units; a time-out is
        bootstrapped.
        """
        continues = storage.masks[1:].unsqueeze(-1)
        cut = 1.0 - storage.valid.unsqueeze(-1)
        final = denormalize(storage.final_values) * storage.bootstrapped.unsqueeze(-1)
        next_values = values[1:] * continues + final
        if not cfg.use_gae:
            return compute_returns(
                storage.rewards, values[:-1], next_values, continues, cut, cfg.gamma
            )
        advantages = compute_gae(
            storage.rewards, values[:-1], next_values, continues, cut, cfg.gamma, cfg.lam
        )
        return advantages + values[:-1]

    def value_weights(self, storage: Storage) -> Tensor:
        """Return the weights (T, N, V) of values: 1 where nothing broke and, of an agent's own,
        the agent was alive.
        """
        num_values = storage.shape.num_values
        weights = storage.valid.unsqueeze(-1).expand(-1, -1, num_values)
        return weights * storage.active[:, :-1].permute(1, 2, 0) if num_values > 1 else weights

    def rollout_targets(
        self, batch: CriticBatch, normalizer: ValueNorm, output: nn.Linear
    ) -> CriticBatch:
        """Update the value normaliser; return the batch in its new units.

        ``output`` is the critic's last layer. It is rescaled so that the critic's values in reward
        units do not change.
        """
        # The critic's units mean nothing yet: nothing to preserve.
        fresh = normalizer.debiasing_term == 0.0
        values = normalizer.denormalize(batch.values)
        before = normalizer.mean_std()
        normalizer.update(batch.returns, batch.weights, self.ranks)
        after = normalizer.mean_std()
        mean, std = (torch.where(fresh, new, old) for old, new in zip(before, after, strict=True))
        rescale_output(output, (mean, std), after)
        values = torch.where(fresh, batch.values, normalizer.normalize(values))
        return batch._replace(values=values, returns=normalizer.normalize(batch.returns))

    def minibatch_targets(self, minibatch: CriticBatch, normalizer: ValueNorm) -> CriticBatch:
        """Return a minibatch as the critic learns from it."""
        return minibatch

    def advantages(self, storage: Storage, *, are_joint: bool) -> list[Tensor]:
        """Return every agent's advantages (T, N), normalised over the agent's active entries or
        over those of all.
        """
        agents = range(storage.shape.num_agents)
        if are_joint:
            advantages = storage.advantages.permute(2, 0, 1).expand(len(agents), -1, -1)
            weights = torch.stack([storage.weights(agent) for agent in agents])
            return list(normalize_advantages(advantages, weights, self.ranks))
        columns = [agent if storage.shape.num_values > 1 else 0 for agent in agents]
        own = [storage.advantages[..., column] for column in columns]
        return [
            normalize_advantages(own[agent], storage.weights(agent), self.ranks) for agent in agents
        ]

    def minibatches(
        self, batches: list[Batch], num_epochs: int, num_minibatches: int, shuffle: Shuffle
    ) -> Iterator[Batch]:
        """Yield minibatches of ``num_epochs`` epochs over batches, with rows in random order."""
        return minibatches(batches, num_epochs, num_minibatches, shuffle)

    def is_skipped(self, enabled: Tensor) -> bool:
        """Return whether an actor for which ``enabled`` (0-dim) is 0 draws no order of rows."""
        return False

    def std(self, std: Tensor, mean: Tensor) -> Tensor:
        """Return the standard deviations (U,) as they enter the likelihood of actions beside means
        (L, B, U).
        """
        return std

    def ratio(self, log_probs: Tensor, log_probs_old: Tensor, aggregation: str) -> Tensor:
        """Return the ratio (L, B) that gradients flow through, from log probabilities (L, B, U)."""
        return losses.likelihood_ratio(log_probs, log_probs_old, aggregation)

    def entropy(self, std: Tensor, weights: Tensor, total: Tensor, tile: int) -> Tensor | None:
        """Return what tile number ``tile`` of a minibatch adds to its entropy [nat], which no
        state changes.
        """
        return losses.gaussian_entropy(std) if tile == 0 else None
