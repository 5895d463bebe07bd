"""Upstream HARL's formulas, for ``algorithm.compat=harl``: recorded updates agree to 1e-6."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from harl_mapush.learning.formula_sets import ON_POLICY_FORMULAS, FormulaSet
from harl_mapush.learning.normalization import ValueNorm, normalize_advantages
from harl_mapush.learning.on_policy.formulas import Formulas
from harl_mapush.learning.on_policy.minibatches import Batch, CriticBatch, Shuffle, cut, num_rows
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.settings import OnPolicyCfg

_BETA = 0.99999  # decay of the value normaliser's statistics per minibatch


class HarlFormulas(Formulas):
    """HARL's variants of ``Formulas``."""

    keeps_final_state = False

    def has_own_values(self, state_type: str, team_reward: str) -> bool:
        return state_type == "FP"

    def value_normalizer(self) -> ValueNorm:
        return ValueNorm(_BETA)

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

        return compute_harl_gae(storage.rewards, values, masks, bad_masks, cfg.gamma, cfg.lam)

    def value_weights(self, storage: Storage) -> Tensor:
        return torch.ones_like(storage.returns)

    def rollout_targets(
        self, batch: CriticBatch, normalizer: ValueNorm, output: nn.Linear
    ) -> CriticBatch:
        return batch

    def minibatch_targets(self, minibatch: CriticBatch, normalizer: ValueNorm) -> CriticBatch:
        normalizer.update(minibatch.returns, ranks=self.ranks)
        return minibatch._replace(returns=normalizer.normalize(minibatch.returns))

    def joins_advantages(self, num_values: int) -> bool:
        return num_values > 1

    def advantages(self, storage: Storage, *, are_joint: bool) -> list[Tensor]:
        """Return every agent's normalised advantages (T, N).

        Sums run over (T, N, A) for values per agent, else over (A, T, N).
        """
        weights = torch.stack([storage.weights(agent) for agent in range(storage.shape.num_agents)])
        advantages = storage.advantages.permute(2, 0, 1).expand_as(weights)
        if not are_joint:
            return [
                normalize_advantages(agent_advantages, active, self.ranks)
                for agent_advantages, active in zip(advantages, weights, strict=True)
            ]
        if storage.advantages.shape[-1] > 1:
            advantages, weights = (x.permute(1, 2, 0).contiguous() for x in (advantages, weights))
            return list(normalize_advantages(advantages, weights, self.ranks).unbind(-1))
        return list(normalize_advantages(advantages, weights, self.ranks))

    def minibatches(
        self, batches: list[Batch], num_epochs: int, num_minibatches: int, shuffle: Shuffle
    ) -> Iterator[Batch]:
        """Yield minibatches, with a new order of rows every epoch, joined by ``join_rows``."""
        for _ in range(num_epochs):
            orders = [shuffle.rows(num_rows(batch), num_minibatches) for batch in batches]
            yield from cut(batches, orders, num_minibatches, join_rows)


def join_rows(batches: list[Batch]) -> Batch:
    """Join batches row by row: flattened to (L B, ...), joined, and cut into (L, B, ...) again.

    A sequence with several batches' rows starts from the hidden state in one batch, as in HARL.
    """

    def join(name: str, columns: tuple[Tensor, ...]) -> Tensor:
        if name == "hidden":
            return torch.cat(columns, dim=1)
        rows = torch.cat([column.flatten(0, 1) for column in columns])
        return rows.view(columns[0].shape[0], -1, *rows.shape[1:])

    kind = type(batches[0])
    columns = zip(kind._fields, zip(*batches, strict=True), strict=True)
    return kind(*(None if column[0] is None else join(name, column) for name, column in columns))  # type: ignore


def compute_harl_gae(
    rewards: Tensor,
    values: Tensor,
    masks: Tensor,
    bad_masks: Tensor | None,
    gamma: float,
    lam: float,
) -> Tensor:
    """Compute returns (T, N, V) by GAE, as HARL's buffer does.

    ``values`` (T+1, N, V) are in reward units. ``masks`` (T+1, N, 1) are 0 if the environment was
    done, ``bad_masks`` 0 if it was truncated. Index t+1 belongs to the step from t to t+1. With
    ``bad_masks`` (proper time limits) a truncated step's advantage is 0: its reward is dropped, and
    the value of its last state is not used.
    """
    returns = torch.empty_like(rewards)
    running = torch.zeros_like(rewards[0])
    for t in reversed(range(rewards.shape[0])):
        delta = rewards[t] + gamma * values[t + 1] * masks[t + 1] - values[t]
        running = delta + gamma * lam * masks[t + 1] * running
        if bad_masks is not None:
            running = bad_masks[t + 1] * running
        returns[t] = running + values[t]
    return returns


# Upstream's networks always have these layers.
ON_POLICY_FORMULAS.register(
    "harl", FormulaSet(HarlFormulas, {"use_layer_norm": True, "std_min": 0.0, "mean_bound": None})
)
