"""Reports on a task's episodes: in training, by the calculator, and in films."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

Z_95 = 1.959963984540054  # standard normal quantile of 97.5 %

Metrics = dict[str, float | int | list[float] | None]


def mean(values: Tensor) -> float | None:
    """Return the mean over the values other than None. None: there are none."""
    numbers = values[~torch.isnan(values)]
    return float(numbers.mean()) if len(numbers) else None


def summarize_metrics(
    episodes: Mapping[str, Tensor], time_limit_s: float, step_dt: float
) -> Metrics:
    """Return the number of episodes, and every metric's mean over the unbroken ones."""
    is_broken = episodes["broken"].cpu()
    columns = {
        name: values.cpu().double()[~is_broken]
        for name, values in episodes.items()
        if name != "broken"
    }
    metrics: Metrics = {"num_episodes": len(is_broken), "num_broken": int(is_broken.sum())}
    return metrics | {name: mean(values) for name, values in columns.items()}


def describe_metrics(metrics: Metrics) -> str:
    """Format metrics, one a line."""
    return "".join(f"{name:<28}{format_metric(value)}\n" for name, value in metrics.items())


def format_metric(value: float | str | Sequence[float | str] | None) -> str:
    """Format one metric: a value, several, a word, or none."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return " ".join(format_metric(part) for part in value)
    return value if isinstance(value, str) else f"{value:.4g}"


def rate(name: str, happened: Tensor) -> Metrics:
    """Return the fraction of True among episodes (N,), with its Wilson confidence interval."""
    count = int(happened.sum())
    trials = len(happened)
    return {f"{name}_rate": count / trials, f"{name}_ci95": list(wilson_interval(count, trials))}


def interval_key(metric: str) -> str:
    """Return the name of a rate's 95 % confidence interval among the calculator's metrics."""
    return f"{metric.replace('_rate', '')}_ci95"


def with_interval(metrics: Mapping[str, Any], name: str) -> str:
    """Format a metric, followed by its 95 % interval if it is a rate. None is a dash."""
    interval = metrics.get(interval_key(name))
    value = "-" if metrics[name] is None else f"{metrics[name]:.3f}"
    return value if interval is None else f"{value} ({interval[0]:.3f} to {interval[1]:.3f})"


# What ends an episode of a team, in a film's words.
TEAM_OUTCOMES: Mapping[str, str] = MappingProxyType(
    {
        "success": "success",
        "collision": "the robots collided",
        "fall": "a robot fell",
        "collapse": "a robot collapsed",
    }
)


class Report(NamedTuple):
    """Summary and format for a task's metrics, by default their means."""

    rates: tuple[str, ...] = ()  # metrics that are 0 or 1; the mean of NAME is called NAME_rate
    # Labels and statistics for the progress line of a training.
    headline: tuple[tuple[str, str], ...] = ()
    # What a film says where a metric is 1; the first one counts.
    outcomes: Mapping[str, str] = MappingProxyType({})
    # From metrics (N,) of N episodes by name, with ``broken`` bool, the time limit and a control
    # step [s].
    summarize: Callable[[Mapping[str, Tensor], float, float], Metrics] = summarize_metrics
    describe: Callable[[Metrics], str] = describe_metrics

    def metrics(
        self, episodes: Mapping[str, Tensor], time_limit_s: float, step_dt: float
    ) -> Metrics:
        """Return the rates among N episodes with their intervals, and the summary."""
        rates: Metrics = {}
        for name in self.rates:
            rates |= rate(name, (episodes[name] > 0.5) & ~episodes["broken"])
        return rates | self.summarize(episodes, time_limit_s, step_dt)


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a proportion by Wilson's score (1927)."""
    share = successes / trials
    z2 = Z_95**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, middle - half), min(1.0, middle + half)
