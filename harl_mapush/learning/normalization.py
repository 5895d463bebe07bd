"""Normalisation of values, returns and advantages by their statistics."""

import torch
from torch import Tensor, nn

from harl_mapush.distributed.ranks import ALONE, Ranks

ADVANTAGE_STD_MIN = 1e-5  # term added to the standard deviation of advantages
_DEBIAS_MIN = 1e-5  # HARL's lower bound of the debiasing term
_RETURN_STD_MIN = 1e-2  # so nearly constant returns are scaled by at most 100


class ValueNorm(nn.Module):
    """Debiased exponential averages for the value targets' mean and standard deviation (scalars).

    Three buffers under HARL's names hold the state, so checkpoints are independent of the device.
    """

    running_mean: Tensor
    running_mean_sq: Tensor
    debiasing_term: Tensor

    def __init__(self, beta: float = 0.99999, variance_min: float = 1e-2) -> None:
        """Average with decay ``beta`` per update. The variance is at least ``variance_min``."""
        super().__init__()
        self.beta = beta
        self.variance_min = variance_min
        self.register_buffer("running_mean", torch.zeros(1))
        self.register_buffer("running_mean_sq", torch.zeros(1))
        self.register_buffer("debiasing_term", torch.tensor(0.0))

    def update(self, x: Tensor, weights: Tensor | None = None, ranks: Ranks = ALONE) -> None:
        """Update the averages by all ranks' targets, except those with weight 0."""
        if weights is None:
            mean, mean_sq = ranks.mean_(torch.stack((x.mean(), (x**2).mean())))
        else:
            total = weights.sum()
            sum_ = (x * weights).sum()
            sum_sq = (x**2 * weights).sum()
            ranks.sum_(total, sum_, sum_sq)
            total = total.clamp(min=1.0)
            mean = sum_ / total
            mean_sq = sum_sq / total
        self.running_mean.mul_(self.beta).add_(mean * (1.0 - self.beta))
        self.running_mean_sq.mul_(self.beta).add_(mean_sq * (1.0 - self.beta))
        self.debiasing_term.mul_(self.beta).add_(1.0 - self.beta)

    def mean_std(self) -> tuple[Tensor, Tensor]:
        """Return the debiased mean and standard deviation, (1,) each.

        Before the first update the mean is 0 and the deviation the smallest allowed.
        """
        debias = self.debiasing_term.clamp(min=_DEBIAS_MIN)
        mean = self.running_mean / debias
        variance = (self.running_mean_sq / debias - mean**2).clamp(min=self.variance_min)
        return mean, variance.sqrt()

    def normalize(self, x: Tensor) -> Tensor:
        """Convert values from reward units into the critic's units."""
        mean, std = self.mean_std()
        return (x - mean) / std

    def denormalize(self, x: Tensor) -> Tensor:
        """Convert values from the critic's units into reward units."""
        mean, std = self.mean_std()
        return x * std + mean


def rescale_output(
    linear: nn.Linear, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]
) -> None:
    """Rescale a critic's last layer in place and keep its denormalised values.

    ``before`` and ``after`` are the normaliser's mean and standard deviation before and after its
    update (van Hasselt et al. 2016, PopArt).
    """
    mean_old, std_old = before
    mean_new, std_new = after
    with torch.no_grad():
        linear.weight.mul_(std_old / std_new)
        linear.bias.mul_(std_old).add_(mean_old - mean_new).div_(std_new)


def normalize_advantages(advantages: Tensor, weights: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Return advantages with mean 0 and standard deviation 1 over entries with weight 1.

    The statistics are over all ranks. Entries with weight 0 do not enter the statistics, but are
    shifted and scaled alike.
    """
    wide = torch.float64  # sums of a million entries are inexact in float32
    total = weights.sum(dtype=wide)
    sum_ = (advantages * weights).sum(dtype=wide)
    ranks.sum_(total, sum_)
    total = total.clamp(min=1.0)
    mean = (sum_ / total).to(advantages.dtype)
    sum_sq = ((advantages - mean) ** 2 * weights).sum(dtype=wide)
    ranks.sum_(sum_sq)
    variance = (sum_sq / total).to(advantages.dtype)
    return (advantages - mean) / (variance.sqrt() + ADVANTAGE_STD_MIN)


class ReturnNorm(nn.Module):
    """Reward scale, from the discounted returns' standard deviation and largest absolute value."""

    mean: Tensor
    var: Tensor
    count: Tensor
    peak: Tensor

    def __init__(self, bound: float) -> None:
        """Keep scaled returns within ``bound``, and their standard deviation at most 1."""
        super().__init__()
        self.bound = bound
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("var", torch.ones(1))
        self.register_buffer("count", torch.tensor(0.0, dtype=torch.float64))
        self.register_buffer("peak", torch.tensor(0.0))

    def update(self, x: Tensor, weights: Tensor, ranks: Ranks = ALONE) -> None:
        """Update the statistics by all ranks' returns x (..., 1) with weights (...) of 0 or 1.

        The variance is computed in parallel (Chan et al. 1979).
        """
        self.peak.copy_(torch.maximum(self.peak, (x.squeeze(-1).abs() * weights).max()))
        ranks.max_(self.peak)

        weights = weights.unsqueeze(-1)
        dims = tuple(range(x.dim() - 1))
        rows = weights.sum().to(torch.float64)
        mean = (x * weights).sum(dims)
        ranks.sum_(rows, mean)
        divisor = rows.clamp(min=1.0).to(x.dtype)
        mean = mean / divisor
        var = ((x - mean) ** 2 * weights).sum(dims)
        ranks.sum_(var)
        var = var / divisor

        total = self.count + rows
        share = (rows / total.clamp(min=1.0)).to(x.dtype)
        delta = mean - self.mean
        self.mean.add_(delta * share)
        self.var.mul_(1.0 - share).add_(var * share + delta**2 * share * (1.0 - share))
        self.count.copy_(total)

    def scale(self) -> Tensor:
        """Return the factor for rewards, 0-dim."""
        spread = torch.maximum(self.var[0].sqrt(), self.peak / self.bound)
        return 1.0 / spread.clamp(min=_RETURN_STD_MIN)
