"""Policy updates by gradient: epochs over minibatches of the surrogate objective."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from harl_mapush.learning import losses
from harl_mapush.learning.networks import Actor
from harl_mapush.learning.on_policy.minibatches import (
    ActorBatch,
    num_rows,
    row_tiles,
    sequence_starts,
    sequences,
    tiles,
)
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.settings import OnPolicyCfg
from mqe.vec_env import TeamImage

# The schedule "adaptive", as in rsl_rl.
_RATE_STEP = 1.5
_RATE_MIN = 1e-5
_RATE_MAX = 1e-2


# The function from probability ratios and advantages to an objective, all (L, B).
Surrogate = Callable[[Tensor, Tensor], Tensor]


class MinibatchStats(NamedTuple):
    """Statistics of one minibatch, 0-dim tensors."""

    policy_loss: Tensor
    entropy: Tensor
    ratio: Tensor  # mean
    kl: Tensor  # mean estimate of KL(old || new) [nat] (Schulman 2020: ratio - 1 - log ratio)


def actor_batch(
    actor: Actor, storage: Storage, agent: int, advantages: Tensor, length: int | None
) -> ActorBatch:
    """Return agent ``agent``'s part of a rollout as a training batch.

    ``advantages`` (T, N) are normalised. ``length`` is the number of decisions in a recurrent
    actor's sequence, None without recurrence.
    """

    def rows(x: Tensor) -> Tensor:
        return sequences(x, length)

    hidden = None
    masks = None
    if length is not None:
        assert storage.actor_hidden is not None
        hidden = sequence_starts(storage.actor_hidden[agent, :-1], length)
        masks = rows(storage.masks[:-1])
    return ActorBatch(
        obs=rows(storage.obs[agent][..., : actor.obs_size]),
        actions=rows(storage.actions[agent][..., : actor.action_size]),
        log_probs=rows(storage.log_probs[agent][..., : actor.action_size]),
        advantages=rows(advantages),
        weights=rows(storage.weights(agent)),
        factor=rows(storage.factor[agent]),
        hidden=hidden,
        masks=masks,
    )


@torch.no_grad()
def rollout_log_probs(actor: Actor, storage: Storage, agent: int) -> Tensor:
    """Return the log probabilities (T, N, U) of the stored actions under the present actor.

    A recurrent actor runs through the whole rollout from its first hidden state.
    """
    obs = storage.obs[agent][..., : actor.obs_size]
    actions = storage.actions[agent][..., : actor.action_size]
    std = actor.std()

    if actor.is_recurrent:
        assert storage.actor_hidden is not None
        mean, _ = actor.unroll(obs, storage.actor_hidden[agent, 0], storage.masks[:-1])
        return losses.gaussian_log_prob(actions, mean, std)

    rows = (row_tiles(x.flatten(0, 1)) for x in (obs, actions))
    parts = [
        losses.gaussian_log_prob(tile_actions, actor(tile_obs), std)
        for tile_obs, tile_actions in zip(*rows, strict=True)
    ]
    return torch.cat(parts).view_as(actions)


def add_policy_gradient(
    actor: Actor,
    optimizer: FlatAdam,
    minibatch: ActorBatch,
    surrogate: Surrogate,
    cfg: OnPolicyCfg,
    mirror: TeamImage | None,
) -> MinibatchStats:
    """Add the gradient of policy loss - entropy_coef entropy + mirror_loss_coef mirror loss.

    The policy loss is minus the weighted mean of factor · surrogate over the minibatch.
    """
    total = minibatch.weights.sum().clamp(min=1.0)
    loss_sum = torch.zeros_like(total)
    entropy_sum = torch.zeros_like(total)
    ratio_sum = torch.zeros_like(total)
    kl_sum = torch.zeros_like(total)
    for k, tile in enumerate(tiles(minibatch)):
        # Probability ratio of the stored actions.
        mean = actor.outputs(tile.obs, tile)
        std = actor.std()
        log_probs = losses.gaussian_log_prob(tile.actions, mean, std)
        ratio = losses.likelihood_ratio(log_probs, tile.log_probs)

        # Surrogate loss.
        gain = surrogate(ratio, tile.advantages)
        policy_loss = -(tile.factor * gain * tile.weights).sum() / total
        loss = policy_loss

        # Image loss.
        if cfg.mirror_loss_coef > 0.0 and mirror is not None:
            asymmetry = _asymmetry(actor, tile.obs, mean, mirror)
            loss = loss + cfg.mirror_loss_coef * (asymmetry * tile.weights).sum() / total

        # Entropy bonus. It does not depend on the state, so the first tile has all of it.
        if k == 0:
            entropy = losses.gaussian_entropy(std)
            loss = loss - cfg.entropy_coef * entropy
            entropy_sum += entropy.detach()

        optimizer.add_gradient(loss)

        with torch.no_grad():
            log_ratio = (log_probs - tile.log_probs).sum(-1)
            loss_sum += policy_loss
            ratio_sum += ratio.sum()
            kl_sum += (torch.expm1(log_ratio) - log_ratio).sum()

    rows = minibatch.weights.shape[0] * num_rows(minibatch)
    return MinibatchStats(loss_sum, entropy_sum, ratio_sum / rows, kl_sum / rows)


def _asymmetry(actor: Actor, obs: Tensor, mean: Tensor, mirror: TeamImage) -> Tensor:
    """Return the squared distance (...) between mirrored mean actions and actions for mirrored obs.

    Loss: Yu, Turk & Liu (2018).
    """
    return (actor(mirror.obs(obs)) - mirror.action(mean)).square().sum(-1)


def adapt_learning_rate(learning_rate: Tensor, kl: Tensor, desired_kl: float) -> None:
    """Adapt a learning rate in place to keep the KL divergence near ``desired_kl``.

    The rate falls if ``kl`` is above twice ``desired_kl``, and rises if it is below half.
    """
    lower = torch.where(kl > 2.0 * desired_kl, 1.0 / _RATE_STEP, 1.0)
    change = torch.where(kl < 0.5 * desired_kl, _RATE_STEP, lower)
    learning_rate.mul_(change).clamp_(_RATE_MIN, _RATE_MAX)
