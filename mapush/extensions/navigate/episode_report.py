"""Report on navigation episodes: the calculator's metrics."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mqe.tasks.episode_report import TEAM_OUTCOMES, Metrics, Report, mean, rate

RATES = ("success", "collision", "fall", "collapse")


def summarize(episodes: Mapping[str, Tensor], time_limit_s: float, step_dt: float) -> Metrics:
    """Turn the metrics (N,) of N episodes into the calculator's.

    Every rate ``NAME_rate`` over all episodes has its 95 % Wilson interval ``NAME_ci95`` beside it.
    In ``finished_time_s`` a failure counts as the time limit. The other metrics are means over
    unbroken episodes.
    """
    is_broken = episodes["broken"].cpu()
    columns = {name: values.cpu().double() for name, values in episodes.items() if name != "broken"}
    happened = {name: (columns[name] > 0.5) & ~is_broken for name in RATES}
    is_success = happened["success"]
    time = columns["episode_time_s"]
    is_late = (time > time_limit_s - 0.5 * step_dt) & ~is_success & ~is_broken
    metrics: Metrics = {"num_episodes": len(time), "num_broken": int(is_broken.sum())}
    for name, mask in happened.items():
        metrics |= rate(name, mask)
    metrics |= rate("timeout", is_late)
    metrics["time_given_success_s"] = mean(time[is_success])
    metrics["finished_time_s"] = mean(torch.where(is_success, time, time_limit_s))
    others = [name for name in columns if name not in (*RATES, "episode_time_s")]
    return metrics | {name: mean(columns[name][~is_broken]) for name in others}


REPORT = Report(
    rates=RATES,
    headline=(("Success", "success_rate"), ("SPL", "spl")),
    outcomes=TEAM_OUTCOMES,
    summarize=summarize,
)
