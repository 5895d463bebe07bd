"""Report on navigation episodes: the calculator's metrics."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mqe.tasks.episode_report import TEAM_OUTCOMES, Metrics, Report, mean, rate, summarize_metrics

RATES = ("success", "collision", "fall", "collapse")


def summarize(episodes: Mapping[str, Tensor], time_limit_s: float, step_dt: float) -> Metrics:
    """Turn the metrics (N,) of N episodes into the calculator's.

    Every rate ``NAME_rate`` over all episodes has its 95 % Wilson interval ``NAME_ci95`` beside it.
    In ``finished_time_s`` a failure counts as the time limit. The other metrics are means over
    unbroken episodes.
    """
    is_unbroken = ~episodes["broken"].cpu()
    time = episodes["episode_time_s"].cpu().double()
    is_success = (episodes["success"].cpu() > 0.5) & is_unbroken
    lasts_to_the_limit = time > time_limit_s - 0.5 * step_dt
    metrics = rate("timeout", lasts_to_the_limit & ~is_success & is_unbroken)
    metrics["time_given_success_s"] = mean(time[is_success])
    metrics["finished_time_s"] = mean(torch.where(is_success, time, time_limit_s))
    others = episodes.keys() - {*RATES, "episode_time_s"}
    means = summarize_metrics(
        {name: values for name, values in episodes.items() if name in others}, time_limit_s, step_dt
    )
    return metrics | means


REPORT = Report(
    rates=RATES,
    headline=(("Success", "success_rate"), ("SPL", "spl")),
    outcomes=TEAM_OUTCOMES,
    summarize=summarize,
)
