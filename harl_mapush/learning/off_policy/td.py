"""Off-policy formulas: squashed Gaussians and TD targets. B rows, U action size."""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from harl_mapush.learning import losses


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions tanh(mean + std noise) (..., U) and their log probabilities (...,).

    Distribution: SAC (Haarnoja et al. 2018).
    """
    raw = mean + torch.exp(log_std) * noise
    log_probs = -0.5 * noise**2 - log_std - losses.HALF_LOG_2_PI
    # This is log(1 - tanh(raw)^2), but finite even if tanh(raw)^2 rounds to 1.
    log_slope = 2.0 * (math.log(2.0) - raw - softplus(-2.0 * raw))
    return torch.tanh(raw), (log_probs - log_slope).sum(-1)


def gaussian_entropy(std: float) -> float:
    """Return the entropy of a normal distribution in one dimension [nat]."""
    return 0.5 + losses.HALF_LOG_2_PI + math.log(std)


def td_target(returns: Tensor, discount: Tensor, next_values: Tensor) -> Tensor:
    """Return returns + discount · next_values, all (B, G). The discount may be (B,)."""
    return returns + discount.view(len(discount), -1) * next_values


def huber(error: Tensor, delta: float | None) -> Tensor:
    """Return e² / 2 up to ``delta`` and delta (|e| - delta / 2) beyond. Without ``delta`` return
    e².

    The square without a half is upstream HARL's.
    """
    return error**2 if delta is None else losses.value_error(error, delta)


def temperature_gradient(
    log_probs: Tensor, target_entropy: float, weights: Tensor | None = None
) -> Tensor:
    """Return the mean gradient of -log(alpha) (log_prob + target entropy) by log(alpha), 0-dim.

    ``log_probs`` and ``weights`` are (B,).
    """
    return -weighted_mean(log_probs + target_entropy, weights)


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of values (B,) with weights (B,) 0 or 1. None weighs all rows equally.

    It is 0 if all weights are 0.
    """
    if weights is None:
        return values.mean()
    return (values * weights).sum() / weights.sum().clamp(min=1.0)


def move_towards(target: Tensor, source: Tensor, share: float) -> None:
    """Move ``target`` in place towards ``source`` by the fraction ``share`` (Polyak averaging)."""
    target.lerp_(source, share)
