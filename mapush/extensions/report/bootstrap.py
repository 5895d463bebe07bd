"""Interquartile means over runs, with stratified bootstrap intervals.

The aggregates are those in Agarwal et al., *Deep Reinforcement Learning at the Edge of the
Statistical Precipice* (NeurIPS 2021), and in their package rliable.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 1000
_QUANTILES = (0.025, 0.975)
_TRIMMED = 0.25  # share of the values cut off at each end

Array = NDArray[np.float64]


def interquartile_mean(values: Array) -> Array:
    """Return the mean of the middle half of ``values`` (..., R) over the last axis.

    R runs. A quarter, rounded down, is cut off at each end. Up to three values have the plain mean.
    """
    num_values = values.shape[-1]
    num_cut = int(_TRIMMED * num_values)
    return np.sort(values, axis=-1)[..., num_cut : num_values - num_cut].mean(axis=-1)


def bootstrap_interval(strata: Sequence[Array]) -> tuple[Array, Array]:
    """Return the bounds (P,) of the 95 % percentile confidence interval for the interquartile mean.

    Each stratum (P, R) has P points from R runs. A resample draws R runs with replacement from
    every stratum, and takes the interquartile mean over all draws.
    """
    generator = np.random.default_rng(0)
    resampled = []
    for _ in range(NUM_RESAMPLES):
        drawn = [
            stratum[:, generator.integers(stratum.shape[1], size=stratum.shape[1])]
            for stratum in strata
        ]
        resampled.append(interquartile_mean(np.concatenate(drawn, axis=1)))
    low, high = np.quantile(np.stack(resampled), _QUANTILES, axis=0)
    return low, high
