"""Report on navigation episodes: the calculator's metrics, and a film's words for an ending."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mapush.extensions.navigate.metrics import DEFAULT_METRICS, METRICS
from mqe.tasks.episode_report import TEAM_OUTCOMES, Metrics, Report, mean, rate

RATES = ("success", "collision", "fall", "collapse")


def summarize(episodes: Mapping[str, Tensor], time_limit_s: float, step_dt: float) -> Metrics:
    """Turn the metrics (N,) of N episodes into the calculator's.

    Every rate ``NAME_rate`` over all episodes has its 95 % Wilson interval ``NAME_ci95`` beside it.
    In ``finished_time_s`` a failure counts as the time limit. ``success_per_leg`` is the fraction
    of started legs with the object at their end. The other metrics are means over unbroken
    episodes.
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
    num_legs = columns["legs"][~is_broken].sum()
    num_lost = (~is_success & ~is_broken).sum()
    metrics["success_per_leg"] = float(1.0 - num_lost / num_legs) if num_legs else None
    others = [name for name in columns if name not in (*RATES, "episode_time_s")]
    return metrics | {name: mean(columns[name][~is_broken]) for name in others}


def describe(metrics: Metrics) -> str:
    """Format the calculator's metrics for a person, one a line."""

    def number(name: str, unit: str = "") -> str:
        value = metrics[name]
        return "-" if value is None else f"{value:.3f}{unit}"

    def event(name: str) -> str:
        low, high = metrics[f"{name}_ci95"]  # type: ignore[misc]
        return f"{number(f'{name}_rate')} ({low:.3f} to {high:.3f})"

    rows = [
        ("success rate", f"{event('success')}, 95 % interval, n = {metrics['num_episodes']}"),
        ("time of the successes", number("time_given_success_s", " s")),
        ("finished time, failures as the limit", number("finished_time_s", " s")),
        ("SPL: success by the shortest way over it", number("spl")),
        ("success per leg", number("success_per_leg")),
        ("way of the object", number("path_length", " m")),
        ("shortest way", number("shortest_length", " m")),
        ("object touches an obstacle", f"{number('object_contact_share')} of the time"),
        ("a robot touches an obstacle", f"{number('robot_contact_share')} of the time"),
        ("collisions", event("collision")),
        ("falls", event("fall")),
        ("collapses", event("collapse")),
        ("time-outs", event("timeout")),
    ]
    default_names = set(DEFAULT_METRICS)
    further = [
        name for name in metrics if name.partition("_agent")[0] in METRICS.keys() - default_names
    ]
    rows += [(name, number(name)) for name in further]
    if metrics["num_broken"]:
        rows.append(("broken simulations, no successes", str(metrics["num_broken"])))
    return "".join(f"{label:<42}{value}\n" for label, value in rows)


REPORT = Report(
    rates=RATES,
    headline=(("Success", "success_rate"), ("SPL", "spl")),
    compared=("success_rate", "return"),
    outcomes=TEAM_OUTCOMES,
    summarize=summarize,
    describe=describe,
)
