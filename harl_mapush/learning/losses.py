"""Losses and Gaussian formulas as pure functions.

Results are per row, so a caller can cut a batch into tiles.
"""

import math

import torch
from torch import Tensor

HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


def gaussian_log_prob(actions: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the log density of each action dimension (..., U)."""
    return -((actions - mean) ** 2) / (2.0 * std**2) - torch.log(std) - HALF_LOG_2_PI


def standard_log_prob(noise: Tensor) -> Tensor:
    """Return the log density of standard normal draws.

    Minus log std this gives the log density at mean + std noise.
    """
    return -0.5 * noise**2 - HALF_LOG_2_PI


def gaussian_entropy(std: Tensor) -> Tensor:
    """Return the entropy [nat] of Gaussians with deviations (..., U), summed over dimensions."""
    return (0.5 + HALF_LOG_2_PI + torch.log(std)).sum(-1)


def gaussian_kl(mean_old: Tensor, std_old: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return KL(old || new) [nat] of diagonal Gaussians (..., U), summed over dimensions."""
    variance_ratio = (std_old / std) ** 2
    shift = ((mean_old - mean) / std) ** 2
    return 0.5 * (variance_ratio + shift - 1.0 - torch.log(variance_ratio)).sum(-1)


def likelihood_ratio(log_probs: Tensor, log_probs_old: Tensor) -> Tensor:
    """Return an action's probability ratio (...) from log probabilities (..., U)."""
    return torch.exp((log_probs - log_probs_old).sum(-1))


def factor_ratio(log_probs: Tensor, log_probs_old: Tensor) -> Tensor:
    """Return ``likelihood_ratio``, rounded as HARL's factor.

    With gradients it cannot be captured in a graph, since the gradient of a product waits for the
    host.
    """
    return torch.exp(log_probs - log_probs_old).prod(-1)


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_param: float) -> Tensor:
    """Return PPO's surrogate min(ratio A, clip(ratio, 1 ± clip_param) A) (Schulman et al. 2017)."""
    plain = ratio * advantages
    clipped = ratio.clamp(1.0 - clip_param, 1.0 + clip_param) * advantages
    return torch.min(plain, clipped)


def value_error(error: Tensor, huber_delta: float | None) -> Tensor:
    """Return e² / 2, or delta (|e| - delta / 2) beyond ``huber_delta`` (Huber 1964)."""
    square = 0.5 * error**2
    if huber_delta is None:
        return square
    size = error.abs()
    return torch.where(size <= huber_delta, square, huber_delta * (size - 0.5 * huber_delta))


def value_loss(
    values: Tensor,
    values_old: Tensor,
    targets: Tensor,
    clip_param: float | None,
    huber_delta: float | None,
) -> Tensor:
    """Return every value's loss, in the critic's units.

    With ``clip_param`` this is the larger loss with and without clipping.
    """
    loss = value_error(targets - values, huber_delta)
    if clip_param is None:
        return loss
    clipped = values_old + (values - values_old).clamp(-clip_param, clip_param)
    return torch.max(loss, value_error(targets - clipped, huber_delta))
