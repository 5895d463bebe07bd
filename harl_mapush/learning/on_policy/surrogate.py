"""The actor's side of learning by gradient: epochs over minibatches of the surrogate objective."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from harl_mapush.learning import losses
from harl_mapush.learning.networks import Actor
from harl_mapush.learning.on_policy.formulas import Arithmetic
from harl_mapush.learning.on_policy.minibatches import (
    ActorBatch,
    Shuffle,
    num_rows,
    sequence_starts,
    sequences,
    tile_slices,
    tiles,
)
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.on_policy.settings import OnPolicyCfg
from harl_mapush.learning.optimizer import FlatAdam
from mqe.vec_env import MirrorImage

# schedule "adaptive", as rsl_rl's
_RATE_STEP = 1.5
_RATE_MIN = 1e-5
_RATE_MAX = 1e-2


class MinibatchStats(NamedTuple):
    """Statistics of one minibatch, 0-dim tensors."""

    policy_loss: Tensor
    entropy: Tensor
    ratio: Tensor  # mean
    kl: Tensor  # mean estimate of KL(old || new) [nat] (Schulman 2020: ratio - 1 - log ratio)


def actor_batch(
    actor: Actor, storage: Storage, agent: int, advantages: Tensor, length: int | None
) -> ActorBatch:
    """Lay agent ``agent``'s part of a rollout out for training; ``advantages`` (T, N) are
    normalised.
    """

    def rows(x: Tensor) -> Tensor:
        return sequences(x, length)

    hidden = masks = None
    if length is not None:
        assert storage.actor_hidden is not None
        hidden = sequence_starts(storage.actor_hidden[agent, :-1], length)
        masks = rows(storage.masks[:-1])
    return ActorBatch(
        rows(storage.obs[agent][..., : actor.obs_size]),
        rows(storage.actions[agent][..., : actor.action_size]),
        rows(storage.log_probs[agent][..., : actor.action_size]),
        rows(advantages),
        rows(storage.weights(agent)),
        rows(storage.factor[agent]),
        hidden,
        masks,
    )


@torch.no_grad()
def rollout_log_probs(actor: Actor, storage: Storage, agent: int) -> Tensor:
    """Return the log probabilities (T, N, U) of the stored actions under the actor as it is now.

    A recurrent actor runs through the whole rollout from its first hidden state.
    """
    obs = storage.obs[agent][..., : actor.obs_size]
    actions = storage.actions[agent][..., : actor.action_size]
    std = actor.std()
    if actor.is_recurrent:
        assert storage.actor_hidden is not None
        mean, _ = actor.unroll(obs, storage.actor_hidden[agent, 0], storage.masks[:-1])
        return losses.gaussian_log_prob(actions, mean, std)
    rows = obs.flatten(0, 1)
    action_rows = actions.flatten(0, 1)
    parts = [
        losses.gaussian_log_prob(
            action_rows.narrow(0, start, length), actor(rows.narrow(0, start, length)), std
        )
        for start, length in tile_slices(rows)
    ]
    return torch.cat(parts).view_as(actions)


def update_policy(
    actor: Actor,
    optimizer: FlatAdam,
    batches: list[ActorBatch],
    cfg: OnPolicyCfg,
    clip_param: float | None,
    shuffle: Shuffle,
    arithmetic: Arithmetic,
    mirror: MirrorImage | None = None,
) -> dict[str, Tensor]:
    """Maximise the surrogate objective in ``num_epochs`` epochs over one agent's batch, or several
    agents' together.

    Return mean metrics as 0-dim tensors. Nothing changes if no entry is active.
    """
    num_active = torch.stack([batch.weights.sum() for batch in batches]).sum()
    optimizer.ranks.sum_(num_active)
    enabled = (num_active > 0.0).float()
    if not cfg.use_policy_active_masks:
        batches = [batch._replace(weights=torch.ones_like(batch.weights)) for batch in batches]
    sums = [torch.zeros_like(enabled) for _ in range(5)]
    num_epochs = 0 if arithmetic.is_skipped(enabled) else cfg.num_epochs
    for minibatch in arithmetic.minibatches(batches, num_epochs, cfg.num_minibatches, shuffle):
        optimizer.zero_grad()
        stats = policy_gradient(actor, optimizer, minibatch, clip_param, cfg, arithmetic, mirror)
        (kl,) = optimizer.share(minibatch.weights.sum(), stats.kl)
        norm = optimizer.step(cfg.max_grad_norm, enabled)
        if cfg.schedule == "adaptive":
            adapt_learning_rate(optimizer.learning_rate, kl, cfg.desired_kl)
        for total, value in zip(sums, (*stats, norm), strict=True):
            total += value * enabled
    names = ("policy_loss", "dist_entropy", "ratio", "kl", "actor_grad_norm")
    num_updates = cfg.num_epochs * cfg.num_minibatches
    metrics = {name: total / num_updates for name, total in zip(names, sums, strict=True)}
    metrics["std"] = actor.std().detach().mean()
    metrics["learning_rate"] = optimizer.learning_rate.clone()
    return metrics


def policy_gradient(
    actor: Actor,
    optimizer: FlatAdam,
    minibatch: ActorBatch,
    clip_param: float | None,
    cfg: OnPolicyCfg,
    arithmetic: Arithmetic,
    mirror: MirrorImage | None = None,
) -> MinibatchStats:
    """Add the gradient of policy loss - entropy_coef entropy + symmetry_coef asymmetry over a
    minibatch.

    The policy loss is minus the weighted mean of factor · surrogate; the entropy does not depend on
    the state.
    """
    total = minibatch.weights.sum().clamp(min=1.0)
    entropy, loss_sum, ratio_sum, kl_sum = (torch.zeros_like(total) for _ in range(4))
    for k, tile in enumerate(tiles(minibatch)):
        hidden = None if tile.hidden is None else tile.hidden[0]
        mean, _ = actor.unroll(tile.obs, hidden, tile.masks)
        std = arithmetic.std(actor.std(), mean)
        log_probs = losses.gaussian_log_prob(tile.actions, mean, std)
        ratio = arithmetic.ratio(log_probs, tile.log_probs, cfg.action_aggregation)
        surrogate = losses.clipped_surrogate(ratio, tile.advantages, clip_param)
        policy_loss = -(tile.factor * surrogate * tile.weights).sum() / total
        loss = policy_loss
        if cfg.symmetry_coef > 0.0 and mirror is not None:
            asymmetry = _asymmetry(actor, tile.obs, mean, mirror)
            loss = loss + cfg.symmetry_coef * (asymmetry * tile.weights).sum() / total
        share = arithmetic.entropy(std, tile.weights, total, k)
        if share is not None:
            loss = loss - cfg.entropy_coef * share
            entropy += share.detach()
        optimizer.add_gradient(loss)
        with torch.no_grad():
            log_ratio = (log_probs - tile.log_probs).sum(-1)
            loss_sum += policy_loss
            ratio_sum += ratio.sum()
            kl_sum += (torch.expm1(log_ratio) - log_ratio).sum()
    rows = minibatch.weights.shape[0] * num_rows(minibatch)
    return MinibatchStats(loss_sum, entropy, ratio_sum / rows, kl_sum / rows)


def _asymmetry(actor: Actor, obs: Tensor, mean: Tensor, mirror: MirrorImage) -> Tensor:
    """Return the squared distance (...) of mean actions to the mirrored ones of mirrored obs (Yu,
    Turk & Liu 2018).
    """
    return (actor(mirror.obs(obs)) - mirror.action(mean)).square().sum(-1)


def adapt_learning_rate(learning_rate: Tensor, kl: Tensor, desired_kl: float) -> None:
    """Lower a learning rate in place where the policy moves twice too far, raise it where not half
    enough.
    """
    lower = torch.where(kl > 2.0 * desired_kl, 1.0 / _RATE_STEP, 1.0)
    change = torch.where(kl < 0.5 * desired_kl, _RATE_STEP, lower)
    learning_rate.mul_(change).clamp_(_RATE_MIN, _RATE_MAX)
