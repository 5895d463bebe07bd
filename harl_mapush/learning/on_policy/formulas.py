"""On-policy learning formulas with replaceable variants.

``Team`` chooses the variant ``algorithm.compat`` when it builds an algorithm. T decisions, N
environments, V values per environment (1, or one per agent), U action size.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.learning.formula_sets import ON_POLICY_FORMULAS, FormulaSet
from harl_mapush.learning.normalization import ValueNorm, normalize_advantages, rescale_output
from harl_mapush.learning.on_policy.minibatches import Batch, CriticBatch, Shuffle, minibatches
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.settings import OnPolicyCfg

_BETA = 0.95  # decay of the value normaliser's statistics per iteration
_VARIANCE_MIN = 1e-4  # lower bound of the variance by which values are normalised


class Formulas:
    """Returns, targets and advantages. Variants inherit from this class."""

    keeps_final_state = True  # whether time-outs are bootstrapped from the episode's last state

    def __init__(self, ranks: Ranks = ALONE) -> None:
        """Compute statistics over the rows of all ``ranks``."""
        self.ranks = ranks

    # Networks

    def has_own_values(self, state_type: str, team_reward: str) -> bool:
        """Return whether the critic has a value for every agent."""
        return state_type == "FP" or team_reward == "own"

    def value_normalizer(self) -> ValueNorm:
        """Build the value normaliser."""
        return ValueNorm(_BETA, _VARIANCE_MIN)

    # The critic

    def returns(
        self,
        storage: Storage,
        values: Tensor,
        denormalize: Callable[[Tensor], Tensor],
        cfg: OnPolicyCfg,
    ) -> Tensor:
        """Compute returns (T, N, V) from values (T+1, N, V) in reward units.

        A time-out is bootstrapped from the value of the episode's last state.
        """
        continues = storage.masks[1:].unsqueeze(-1)
        cut = 1.0 - storage.valid.unsqueeze(-1)
        final = denormalize(storage.final_values) * storage.bootstrapped.unsqueeze(-1)
        next_values = values[1:] * continues + final

        advantages = compute_gae(
            storage.rewards, values[:-1], next_values, continues, cut, cfg.gamma, cfg.lam
        )
        return advantages + values[:-1]

    def value_weights(self, storage: Storage) -> Tensor:
        """Return the weights (T, N, V) of the values in the critic's loss.

        A weight is 1 if the simulation did not break and, for an agent's own value, if the agent
        was alive.
        """
        num_values = storage.shape.num_values
        weights = storage.valid.unsqueeze(-1).expand(-1, -1, num_values)
        if num_values == 1:
            return weights
        return weights * storage.active[:, :-1].permute(1, 2, 0)

    def rollout_targets(
        self, batch: CriticBatch, normalizer: ValueNorm, output: nn.Linear
    ) -> CriticBatch:
        """Update the value normaliser. Return the batch in its new units.

        ``output`` is the critic's last layer. It is rescaled to keep the critic's values in reward
        units.
        """
        # Before the first update the critic's units have no meaning that could be preserved.
        is_first = normalizer.debiasing_term == 0.0
        values = normalizer.denormalize(batch.values)

        before = normalizer.mean_std()
        normalizer.update(batch.returns, batch.weights, self.ranks)
        after = normalizer.mean_std()

        mean, std = (
            torch.where(is_first, new, old) for old, new in zip(before, after, strict=True)
        )
        rescale_output(output, (mean, std), after)
        values = torch.where(is_first, batch.values, normalizer.normalize(values))
        return batch._replace(values=values, returns=normalizer.normalize(batch.returns))

    def minibatch_targets(self, minibatch: CriticBatch, normalizer: ValueNorm) -> CriticBatch:
        """Return a minibatch in the critic's units."""
        return minibatch

    # The actors

    def joins_advantages(self, num_values: int) -> bool:
        """Return whether the advantages of all agents are normalised together."""
        return False

    def advantages(self, storage: Storage, *, are_joint: bool) -> list[Tensor]:
        """Return every agent's normalised advantages (T, N).

        Statistics are over the agent's active entries, or over all agents' if ``are_joint``.
        """
        agents = range(storage.shape.num_agents)
        if are_joint:
            advantages = storage.advantages.permute(2, 0, 1).expand(len(agents), -1, -1)
            weights = torch.stack([storage.weights(agent) for agent in agents])
            return list(normalize_advantages(advantages, weights, self.ranks))

        columns = [agent if storage.shape.num_values > 1 else 0 for agent in agents]
        return [
            normalize_advantages(
                storage.advantages[..., column], storage.weights(agent), self.ranks
            )
            for agent, column in zip(agents, columns, strict=True)
        ]

    def minibatches(
        self, batches: list[Batch], num_epochs: int, num_minibatches: int, shuffle: Shuffle
    ) -> Iterator[Batch]:
        """Yield the minibatches of ``num_epochs`` epochs, with rows in random order."""
        return minibatches(batches, num_epochs, num_minibatches, shuffle)


ON_POLICY_FORMULAS.register("mapush", FormulaSet(Formulas))


def compute_gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    continues: Tensor,
    cut: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Compute advantages (T, N, V) by generalised advantage estimation (Schulman et al. 2016).

    ``values`` (T, N, V) belong to the decisions' states. ``next_values`` (T, N, V) belong to the
    true next states: 0 after a termination, the value of the episode's last state after a time-out.
    ``continues`` (T, N, 1) is 0 at the end of an episode. With ``cut`` (T, N, 1) at 1, the
    advantage is 0 and does not flow into earlier ones.
    """
    advantages = torch.empty_like(rewards)
    deltas = (rewards + gamma * next_values - values) * (1.0 - cut)
    carry = gamma * lam * continues
    running = torch.zeros_like(rewards[0])
    for t in reversed(range(rewards.shape[0])):
        running = deltas[t] + carry[t] * running
        advantages[t] = running
    return advantages
