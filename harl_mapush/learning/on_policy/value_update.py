"""Critic updates: a rollout's values, returns and advantages, and the value loss."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harl_mapush.learning import losses
from harl_mapush.learning.networks import Critic
from harl_mapush.learning.on_policy.formulas import Formulas
from harl_mapush.learning.on_policy.minibatches import (
    CriticBatch,
    Shuffle,
    row_tiles,
    sequence_starts,
    sequences,
    tiles,
)
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.settings import NetworkCfg, OnPolicyCfg
from mqe.resumable import Resumable
from mqe.vec_env import EntityBlock


class ValueLearner(Resumable):
    """Trains a critic. It has the critic, an optimiser and a value normaliser."""

    def __init__(
        self,
        cfg: OnPolicyCfg,
        network: NetworkCfg,
        state_size: int,
        num_outputs: int,
        device: torch.device,
        shuffle: Shuffle,
        formulas: Formulas,
        sets: Sequence[EntityBlock],
    ) -> None:
        self.cfg = cfg
        self.network = network
        self.shuffle = shuffle
        self.formulas = formulas
        self.critic = Critic(network, state_size, num_outputs, sets).to(device)
        self.optimizer = FlatAdam(
            self.critic, cfg.critic_learning_rate, cfg.adam_eps, cfg.weight_decay, formulas.ranks
        )
        self.normalizer = formulas.value_normalizer().to(device)

    # The values and returns of a rollout

    @torch.no_grad()
    def compute_values(self, storage: Storage) -> None:
        """Compute the critic's values for all states in the rollout, in the critic's units."""
        if self.critic.is_recurrent:
            self._unroll_values(storage)
            return
        storage.values.copy_(self._values(storage.state).view_as(storage.values))
        if storage.final_state is not None:
            final_values = self._values(storage.final_state)
            storage.final_values.copy_(final_values.view_as(storage.final_values))

    @torch.no_grad()
    def compute_returns(self, storage: Storage) -> None:
        """Compute returns and advantages from rewards and values, in reward units."""
        values = self.denormalize(storage.values)
        returns = self.formulas.returns(storage, values, self.denormalize, self.cfg)
        storage.returns.copy_(returns)
        storage.advantages.copy_(returns - values[:-1])

    def denormalize(self, values: Tensor) -> Tensor:
        """Convert values from the critic's units into reward units."""
        return self.normalizer.denormalize(values) if self.cfg.use_value_norm else values

    # Updates

    def update(self, storage: Storage) -> dict[str, Tensor]:
        """Train the critic on the returns. Return its metrics as 0-dim tensors."""
        cfg = self.cfg
        num_epochs = cfg.critic_num_epochs or cfg.num_epochs
        num_minibatches = cfg.critic_num_minibatches or cfg.num_minibatches

        with torch.no_grad():
            values = self.denormalize(storage.values)[:-1]
            explained_variance = _explained_variance(values, storage.returns)
            batch = self.batch(storage)
            if cfg.use_value_norm:
                batch = self.formulas.rollout_targets(batch, self.normalizer, self.critic.v_out)

        loss_sum = torch.zeros_like(explained_variance)
        norm_sum = torch.zeros_like(explained_variance)
        for minibatch in self.formulas.minibatches(
            [batch], num_epochs, num_minibatches, self.shuffle
        ):
            if cfg.use_value_norm:
                with torch.no_grad():
                    minibatch = self.formulas.minibatch_targets(minibatch, self.normalizer)
            self.optimizer.zero_grad()
            loss_sum += self._add_gradient(minibatch)
            self.optimizer.share(minibatch.weights.sum())
            norm_sum += self.optimizer.step(cfg.max_grad_norm)

        num_updates = num_epochs * num_minibatches
        return {
            "value_loss": loss_sum / num_updates,
            "critic_grad_norm": norm_sum / num_updates,
            "explained_variance": explained_variance,
        }

    def batch(self, storage: Storage) -> CriticBatch:
        """Return a rollout as a training batch of the critic.

        Values are in the critic's units, returns in reward units. Rows are (t N + n), for FP states
        (t N + n) A + a.
        """
        length = self.chunk_length(storage)
        steps = storage.shape.num_steps
        state_size = storage.state.shape[-1]

        def rows(x: Tensor) -> Tensor:
            return sequences(x.reshape(steps, self._num_rows(storage), -1), length)

        masks = None
        hidden = None
        if length is not None:
            assert storage.critic_hidden is not None
            masks = sequences(self._row_masks(storage)[:-1], length)
            hidden = sequence_starts(storage.critic_hidden[:-1], length)
        return CriticBatch(
            state=sequences(storage.state[:-1].reshape(steps, -1, state_size), length),
            values=rows(storage.values[:-1]),
            returns=rows(storage.returns),
            weights=rows(self.formulas.value_weights(storage)),
            hidden=hidden,
            masks=masks,
        )

    def chunk_length(self, storage: Storage) -> int | None:
        """Return the number of decisions in a training sequence, None without recurrence."""
        if not self.network.use_recurrent_policy:
            return None
        return self.network.chunk_length or storage.shape.num_steps

    # Saving

    def state_parts(self) -> dict[str, Any]:
        """Return critic, normaliser and optimiser."""
        return {
            "critic": self.critic,
            "normalizer": self.normalizer,
            "optimizer": self.optimizer,
        }

    # Helpers

    def _add_gradient(self, minibatch: CriticBatch) -> Tensor:
        """Add the gradient of a minibatch's value loss. Return the loss."""
        cfg = self.cfg
        clip_param = cfg.clip_param if cfg.use_clipped_value_loss else None
        huber_delta = cfg.huber_delta if cfg.use_huber_loss else None
        scale = 1.0 / minibatch.weights.sum().clamp(min=1.0)
        total = torch.zeros_like(scale)
        for tile in tiles(minibatch):
            values = self.critic.outputs(tile.state, tile)
            loss = losses.value_loss(values, tile.values, tile.returns, clip_param, huber_delta)
            loss = (loss * tile.weights).sum() * scale
            self.optimizer.add_gradient(loss * cfg.value_loss_coef)
            total += loss.detach()
        return total

    def _values(self, states: Tensor) -> Tensor:
        """Return the values (rows, V') of states (..., S), tile by tile. V' values per row."""
        return torch.cat([self.critic(tile) for tile in row_tiles(states.flatten(0, -2))])

    def _unroll_values(self, storage: Storage) -> None:
        """Compute the values of a recurrent critic, and its hidden states."""
        assert storage.critic_hidden is not None
        steps = storage.shape.num_steps
        rows = storage.state.view(steps + 1, self._num_rows(storage), -1)
        masks = self._row_masks(storage)
        values, after = self.critic.unroll(rows, storage.critic_hidden[0], masks)
        assert after is not None
        storage.values.copy_(values.view_as(storage.values))
        storage.critic_hidden[1:] = after[:-1] * masks[1:, :, None, None]

        # The last state of an episode follows the hidden state of its decision.
        if storage.final_state is not None:
            final = storage.final_state.view(1, -1, rows.shape[-1])
            continues = torch.ones_like(final[..., 0])
            values, _ = self.critic.unroll(final, after[:-1].flatten(0, 1), continues)
            storage.final_values.copy_(values.view_as(storage.final_values))

    def _num_rows(self, storage: Storage) -> int:
        """Return N, or N A if every agent has a state of its own."""
        return storage.state.shape[1:-1].numel()

    def _row_masks(self, storage: Storage) -> Tensor:
        """Return the masks (T+1, rows), repeated for all rows of an environment."""
        rows_per_env = self._num_rows(storage) // storage.shape.num_envs
        return storage.masks.repeat_interleave(rows_per_env, dim=1)


def _explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Return 1 - Var(returns - values) / Var(returns)."""
    residual = (returns - values).var(correction=0)
    return 1.0 - residual / returns.var(correction=0).clamp(min=1e-12)
