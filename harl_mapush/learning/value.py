"""The critic's side of learning: values, returns and advantages, and the value update."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harl_mapush.learning import losses
from harl_mapush.learning.minibatches import (
    CriticBatch,
    Shuffle,
    minibatches,
    sequence_starts,
    sequences,
    tile_slices,
    tiles,
)
from harl_mapush.learning.networks import Critic, NetworkCfg
from harl_mapush.learning.normalization import RunningNorm, ValueNorm, rescale_output
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.returns import compute_gae, compute_harl_gae, compute_harl_returns, compute_returns
from harl_mapush.learning.settings import OnPolicyCfg
from harl_mapush.learning.storage import Storage

_HARL_BETA = 0.99999
_TRACKING_BETA = 0.95  # an iteration, compat=mapush
_TRACKING_VARIANCE_MIN = 1e-4


class ValueLearner:
    """A critic, its optimiser and its value normaliser."""

    def __init__(
        self,
        cfg: OnPolicyCfg,
        network: NetworkCfg,
        state_size: int,
        num_outputs: int,
        device: torch.device,
        shuffle: Shuffle,
    ) -> None:
        self.cfg, self.network, self.shuffle = cfg, network, shuffle
        self.is_harl = cfg.compat == "harl"
        self.critic = Critic(network, state_size, num_outputs).to(device)
        self.optimizer = FlatAdam(
            self.critic, cfg.critic_learning_rate, cfg.adam_eps, cfg.weight_decay, is_exact=self.is_harl
        )
        beta = cfg.value_norm_beta
        if self.is_harl:
            self.normalizer = ValueNorm(_HARL_BETA if beta is None else beta).to(device)
        else:
            self.normalizer = ValueNorm(_TRACKING_BETA if beta is None else beta, _TRACKING_VARIANCE_MIN).to(device)

    @torch.no_grad()
    def compute_values(self, storage: Storage) -> None:
        """Ask the critic for the value of every state of the rollout, in its own units."""
        if self.critic.is_recurrent:
            self._unroll_values(storage)
            return
        storage.values.copy_(self._values(storage.state).view_as(storage.values))
        if storage.final_state is not None:
            storage.final_values.copy_(self._values(storage.final_state).view_as(storage.final_values))

    @torch.no_grad()
    def compute_returns(self, storage: Storage) -> None:
        """Turn rewards and values into returns and advantages, in reward units."""
        values = self.denormalize(storage.values)
        returns = self._harl_returns(storage, values) if self.is_harl else self._returns(storage, values)
        storage.returns.copy_(returns)
        storage.advantages.copy_(returns - values[:-1])

    def update(self, storage: Storage) -> dict[str, Tensor]:
        """Fit the critic to the returns; give its metrics as 0-dim tensors."""
        cfg = self.cfg
        num_epochs = cfg.critic_num_epochs or cfg.num_epochs
        num_minibatches = cfg.critic_num_minibatches or cfg.num_minibatches
        with torch.no_grad():
            explained = _explained_variance(self.denormalize(storage.values)[:-1], storage.returns)
            batch = self.batch(storage)
            if not self.is_harl:
                batch = self._track(batch)
        loss_sum = torch.zeros_like(explained)
        norm_sum = torch.zeros_like(explained)
        for minibatch in minibatches([batch], num_epochs, num_minibatches, self.shuffle, as_harl=self.is_harl):
            if self.is_harl:
                with torch.no_grad():
                    minibatch = self._harl_normalize(minibatch)
            self.optimizer.zero_grad()
            loss_sum += self._backward(minibatch)
            norm_sum += self.optimizer.step(cfg.max_grad_norm)
        num_updates = num_epochs * num_minibatches
        return {
            "value_loss": loss_sum / num_updates,
            "critic_grad_norm": norm_sum / num_updates,
            "explained_variance": explained,
        }

    def batch(self, storage: Storage) -> CriticBatch:
        """Lay a rollout out for training; values in the critic's units, returns in reward units.

        Rows are (t N + n), for FP states (t N + n) A + a; a value is learned where the simulation was sound and, if
        it is an agent's own, where the agent was alive. HARL learns every value.
        """
        length = self.chunk_length(storage)
        columns = storage.state.shape[-1]
        steps, envs, num_values = storage.returns.shape
        if self.is_harl:
            weights = torch.ones_like(storage.returns)
        else:
            weights = storage.valid.unsqueeze(-1).expand(-1, -1, num_values)
            if num_values > 1:
                weights = weights * storage.active[:, :-1].permute(1, 2, 0)

        def rows(x: Tensor) -> Tensor:
            return sequences(x.reshape(steps, self._rows(storage), -1), length)

        masks = None
        hidden = None
        if length is not None:
            assert storage.critic_hidden is not None
            masks = sequences(self._row_masks(storage)[:-1], length)
            hidden = sequence_starts(storage.critic_hidden[:-1], length)
        state = sequences(storage.state[:-1].reshape(steps, -1, columns), length)
        return CriticBatch(state, rows(storage.values[:-1]), rows(storage.returns), rows(weights), hidden, masks)

    def chunk_length(self, storage: Storage) -> int | None:
        """Say how many consecutive decisions a training sequence has; None without recurrence."""
        if not self.network.use_recurrent_policy:
            return None
        return self.network.chunk_length or storage.shape.num_steps

    def denormalize(self, values: Tensor) -> Tensor:
        """Turn values in the critic's units into reward units."""
        return self.normalizer.denormalize(values) if self.cfg.use_value_norm else values

    def update_obs_norm(self, storage: Storage) -> None:
        """Take the rollout's states into the critic's running normalisation, if it has one."""
        norm = self.critic.obs_norm
        if isinstance(norm, RunningNorm):
            states = storage.state[:-1]
            norm.update(
                states, storage.valid.view(*storage.valid.shape, *[1] * (states.dim() - 3)).expand(states.shape[:-1])
            )

    def state_dict(self) -> dict[str, Any]:
        """Critic, normaliser and optimiser."""
        parts = {"critic": self.critic, "normalizer": self.normalizer, "optimizer": self.optimizer}
        return {name: part.state_dict() for name, part in parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self.critic.load_state_dict(state["critic"])
        self.normalizer.load_state_dict(state["normalizer"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _backward(self, minibatch: CriticBatch) -> Tensor:
        cfg = self.cfg
        clip_param = cfg.clip_param if cfg.use_clipped_value_loss else None
        huber_delta = cfg.huber_delta if cfg.use_huber_loss else None
        scale = 1.0 / minibatch.weights.sum().clamp(min=1.0)
        total = torch.zeros_like(scale)
        for tile in tiles(minibatch):
            hidden = None if tile.hidden is None else tile.hidden[0]
            values, _ = self.critic.unroll(tile.state, hidden, tile.masks)
            loss = losses.value_loss(values, tile.values, tile.returns, clip_param, huber_delta)
            loss = (loss * tile.weights).sum() * scale
            self.optimizer.add_gradient(loss * cfg.value_loss_coef)
            total += loss.detach()
        return total

    def _harl_normalize(self, minibatch: CriticBatch) -> CriticBatch:
        if not self.cfg.use_value_norm:
            return minibatch
        self.normalizer.update(minibatch.returns)
        return minibatch._replace(returns=self.normalizer.normalize(minibatch.returns))

    def _track(self, batch: CriticBatch) -> CriticBatch:
        if not self.cfg.use_value_norm:
            return batch
        fresh = self.normalizer.debiasing_term == 0.0  # the critic's units mean nothing yet: nothing to preserve
        values = self.normalizer.denormalize(batch.values)
        before = self.normalizer.mean_std()
        self.normalizer.update(batch.returns, batch.weights)
        after = self.normalizer.mean_std()
        mean, std = (torch.where(fresh, new, old) for old, new in zip(before, after, strict=True))
        rescale_output(self.critic.v_out, (mean, std), after)
        values = torch.where(fresh, batch.values, self.normalizer.normalize(values))
        return batch._replace(values=values, returns=self.normalizer.normalize(batch.returns))

    def _returns(self, storage: Storage, values: Tensor) -> Tensor:
        cfg = self.cfg
        continues = storage.masks[1:].unsqueeze(-1)
        cut = 1.0 - storage.valid.unsqueeze(-1)
        final = self.denormalize(storage.final_values) * storage.bootstrapped.unsqueeze(-1)
        next_values = values[1:] * continues + final
        if not cfg.use_gae:
            return compute_returns(storage.rewards, values[:-1], next_values, continues, cut, cfg.gamma)
        advantages = compute_gae(storage.rewards, values[:-1], next_values, continues, cut, cfg.gamma, cfg.lam)
        return advantages + values[:-1]

    def _harl_returns(self, storage: Storage, values: Tensor) -> Tensor:
        cfg = self.cfg
        masks = storage.masks.unsqueeze(-1)
        bad_masks = None
        if cfg.use_proper_time_limits:
            bad = (1.0 - storage.truncated) * storage.valid
            bad_masks = torch.cat([torch.ones_like(bad[:1]), bad]).unsqueeze(-1)
        if cfg.use_gae:
            return compute_harl_gae(storage.rewards, values, masks, bad_masks, cfg.gamma, cfg.lam)
        return compute_harl_returns(storage.rewards, values, storage.values[-1], masks, bad_masks, cfg.gamma)

    def _values(self, states: Tensor) -> Tensor:
        rows = states.view(-1, states.shape[-1])
        return torch.cat([self.critic(rows.narrow(0, start, length)) for start, length in tile_slices(rows)])

    def _unroll_values(self, storage: Storage) -> None:
        assert storage.critic_hidden is not None
        steps = storage.shape.num_steps
        rows = storage.state.view(steps + 1, self._rows(storage), -1)
        masks = self._row_masks(storage)
        values, after = self.critic.unroll(rows, storage.critic_hidden[0], masks)
        assert after is not None
        storage.values.copy_(values.view_as(storage.values))
        storage.critic_hidden[1:] = after[:-1] * masks[1:, :, None, None]
        if storage.final_state is not None:
            final = storage.final_state.view(1, -1, rows.shape[-1])
            values, _ = self.critic.unroll(final, after[:-1].flatten(0, 1), torch.ones_like(final[..., 0]))
            storage.final_values.copy_(values.view_as(storage.final_values))

    def _rows(self, storage: Storage) -> int:
        """N, or N A where every agent has its own state."""
        return storage.state.shape[1:-1].numel()

    def _row_masks(self, storage: Storage) -> Tensor:
        return storage.masks.repeat_interleave(self._rows(storage) // storage.shape.num_envs, dim=1)


def _explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    return 1.0 - (returns - values).var(correction=0) / returns.var(correction=0).clamp(min=1e-12)
