"""Upstream HARL's arithmetic, for ``algorithm.compat=harl``: agrees with recorded updates of it to
1e-6.

Where a GPU allows no more than that, ``RoundedHarlArithmetic`` rounds as HARL does on a CPU, to the
last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from harl_mapush.learning import losses
from harl_mapush.learning.networks import NetworkCfg, harl_network
from harl_mapush.learning.normalization import ADVANTAGE_STD_MIN, ValueNorm, normalize_advantages
from harl_mapush.learning.on_policy.formulas import Arithmetic
from harl_mapush.learning.on_policy.minibatches import Batch, CriticBatch, Shuffle, cut, num_rows
from harl_mapush.learning.on_policy.returns import compute_harl_gae, compute_harl_returns
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.optimizer import BETA_1, BETA_2, FlatAdam

if TYPE_CHECKING:
    from harl_mapush.learning.on_policy.settings import OnPolicyCfg

_BETA = 0.99999  # what the value normaliser keeps of the past, a minibatch


class HarlArithmetic(Arithmetic):
    """The formulas that differ."""

    keeps_final_state = False

    def network(self, network: NetworkCfg) -> NetworkCfg:
        return harl_network(network)

    def has_own_values(self, state_type: str, team_reward: str) -> bool:
        return state_type == "FP"

    def joins_advantages(self, num_values: int) -> bool:
        return num_values > 1

    def value_normalizer(self, beta: float | None) -> ValueNorm:
        return ValueNorm(_BETA if beta is None else beta)

    def returns(
        self,
        storage: Storage,
        values: Tensor,
        denormalize: Callable[[Tensor], Tensor],
        cfg: OnPolicyCfg,
    ) -> Tensor:
        masks = storage.masks.unsqueeze(-1)
        bad_masks = None
        if cfg.use_proper_time_limits:
            bad = (1.0 - storage.truncated) * storage.valid
            bad_masks = torch.cat([torch.ones_like(bad[:1]), bad]).unsqueeze(-1)
        if cfg.use_gae:
            return compute_harl_gae(storage.rewards, values, masks, bad_masks, cfg.gamma, cfg.lam)
        return compute_harl_returns(
            storage.rewards, values, storage.values[-1], masks, bad_masks, cfg.gamma
        )

    def value_weights(self, storage: Storage) -> Tensor:
        return torch.ones_like(storage.returns)

    def rollout_targets(
        self, batch: CriticBatch, normalizer: ValueNorm, output: nn.Linear
    ) -> CriticBatch:
        return batch

    def minibatch_targets(self, minibatch: CriticBatch, normalizer: ValueNorm) -> CriticBatch:
        normalizer.update(minibatch.returns, ranks=self.ranks)
        return minibatch._replace(returns=normalizer.normalize(minibatch.returns))

    def advantages(self, storage: Storage, *, are_joint: bool) -> list[Tensor]:
        """Return what ``Arithmetic`` does; sums run over (T, N, A) where values are the agents'
        own, else (A, T, N).
        """
        weights = torch.stack([storage.weights(agent) for agent in range(storage.shape.num_agents)])
        advantages = storage.advantages.permute(2, 0, 1).expand_as(weights)
        if not are_joint:
            return [
                self.normalize_advantages(own, active)
                for own, active in zip(advantages, weights, strict=True)
            ]
        if storage.advantages.shape[-1] > 1:
            advantages, weights = (x.permute(1, 2, 0).contiguous() for x in (advantages, weights))
            return list(self.normalize_advantages(advantages, weights).unbind(-1))
        return list(self.normalize_advantages(advantages, weights))

    def normalize_advantages(self, advantages: Tensor, weights: Tensor) -> Tensor:
        """Return advantages of mean 0 and standard deviation 1 where weights are 1."""
        return normalize_advantages(advantages, weights, self.ranks)

    def minibatches(
        self, batches: list[Batch], num_epochs: int, num_minibatches: int, shuffle: Shuffle
    ) -> Iterator[Batch]:
        """Yield minibatches with a new order of rows every epoch, joined as ``join_rows`` does."""
        for _ in range(num_epochs):
            orders = [shuffle.rows(num_rows(batch), num_minibatches) for batch in batches]
            yield from cut(batches, orders, num_minibatches, join_rows)


class RoundedHarlArithmetic(HarlArithmetic):
    """The same in HARL's order of operations, which waits for the host and cannot be captured: for
    a CPU.
    """

    def optimizer(self, network: nn.Module, learning_rate: float, cfg: OnPolicyCfg) -> FlatAdam:
        return RoundedAdam(network, learning_rate, cfg.adam_eps, cfg.weight_decay)

    def normalize_advantages(self, advantages: Tensor, weights: Tensor) -> Tensor:
        """Return what NumPy gives."""
        if not bool(weights.any()):
            return normalize_advantages(advantages, weights)
        active = advantages.masked_fill(weights == 0.0, float("nan")).contiguous().numpy()
        mean = float(np.nanmean(active))
        std = float(np.nanstd(active) + ADVANTAGE_STD_MIN)
        return (advantages - mean) / std

    def is_skipped(self, enabled: Tensor) -> bool:
        return not bool(enabled)  # upstream leaves out an agent that was never alive

    def std(self, std: Tensor, mean: Tensor) -> Tensor:
        return std.expand_as(mean)

    def ratio(self, log_probs: Tensor, log_probs_old: Tensor, aggregation: str) -> Tensor:
        return losses.factor_ratio(log_probs, log_probs_old, aggregation)

    def entropy(self, std: Tensor, weights: Tensor, total: Tensor, tile: int) -> Tensor | None:
        return (losses.gaussian_entropy(std) * weights).sum() / total


class RoundedAdam(FlatAdam):
    """Adam with torch.optim.Adam's own operations in its own order."""

    def step(self, max_grad_norm: float, enabled: Tensor | None = None) -> Tensor:
        norm = torch.stack(
            [torch.linalg.vector_norm(part) for part in self.views(self.grad)]
        ).norm()
        self.clip(norm, max_grad_norm)
        if enabled is not None and not bool(enabled):
            return norm
        if self.weight_decay:
            self.grad.add_(self.flat, alpha=self.weight_decay)
        self.step_count.add_(1.0)
        count = float(self.step_count)
        self.exp_avg.lerp_(self.grad, 1.0 - BETA_1)
        self.exp_avg_sq.mul_(BETA_2).addcmul_(self.grad, self.grad, value=1.0 - BETA_2)
        denominator = (self.exp_avg_sq.sqrt() / (1.0 - BETA_2**count) ** 0.5).add_(self.eps)
        self.flat.addcdiv_(
            self.exp_avg, denominator, value=-float(self.learning_rate) / (1.0 - BETA_1**count)
        )
        return norm


def join_rows(batches: list[Batch]) -> Batch:
    """Join batches row by row: flattened to (L B, ...), joined, and cut into (L, B, ...) again.

    With several batches a sequence then has rows of several sequences, but starts from the hidden
    state of one.
    """

    def join(name: str, columns: tuple[Tensor, ...]) -> Tensor:
        if name == "hidden":
            return torch.cat(columns, dim=1)
        rows = torch.cat([column.flatten(0, 1) for column in columns])
        return rows.view(columns[0].shape[0], -1, *rows.shape[1:])

    kind = type(batches[0])
    columns = zip(kind._fields, zip(*batches, strict=True), strict=True)
    return kind(*(None if column[0] is None else join(name, column) for name, column in columns))  # type: ignore
