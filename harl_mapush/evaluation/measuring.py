"""The calculator's results: metrics pooled and per seed, and a table of a run's checkpoints."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harl_mapush.config import RunCfg
from harl_mapush.evaluation.episodes import (
    Columns,
    Request,
    as_tensors,
    join_columns,
    play_requests,
)
from harl_mapush.evaluation.pushing import PREFIX, describe_pushing, summarize_pushing
from harl_mapush.evaluation.strict_protocol import describe_strict, summarize_strict
from harl_mapush.runs import checkpoint, evaluation_worlds, run_folder
from mqe.config import ConfigError
from mqe.registry import TASKS
from mqe.tasks.episode_report import Metrics, Report, format_metric, rate
from mqe.world.scene import STEP_DT

Say = Callable[[str], None]


def measure(request: Request, num_workers: int, say: Say) -> dict[str, Any]:
    """Return the calculator's metrics, pooled over seeds; several seeds add ``per_seed``."""
    (found,) = measure_all([request], num_workers, say)
    return found


def measure_all(
    requests: Sequence[Request], num_workers: int, say: Say
) -> Iterable[dict[str, Any]]:
    """Yield the metrics of each request in order, each as soon as it is complete."""
    for request, by_seed in zip(requests, play_requests(requests, num_workers, say), strict=True):
        metrics: dict[str, Any] = dict(_metrics(request, list(by_seed.values())))
        if len(by_seed) > 1:
            metrics["per_seed"] = {
                str(seed): _metrics(request, [columns]) for seed, columns in by_seed.items()
            }
        yield metrics


def measure_baselines(
    request: Request, num_episodes: int, num_workers: int, say: Say
) -> dict[str, Metrics]:
    """Return how often each scripted policy of the task succeeds on a request's own starts.

    They play the first ``num_episodes`` of each seed. The metrics are the task's headline metric,
    its interval and ``num_episodes``; a policy that cannot act in these worlds is left out, with a
    note. Each is reported by ``say`` in one line.
    """
    policies = [
        policy
        for policy in TASKS[request.cfg.task.name].policies
        if policy != request.function and report_of(request.cfg).headline
    ]
    found: dict[str, Metrics] = {}
    for policy in policies:
        name = headline(request.cfg)
        interval = f"{name.removesuffix('_rate')}_ci95"
        own = replace(
            request,
            num_episodes=min(num_episodes, request.num_episodes),
            folder=None,
            function=policy,
            is_strict=False,
            measures_pushing=False,
        )
        try:
            metrics = measure(own, num_workers, say)
        except ConfigError as error:
            say(f"Note: {policy} is left out: {error}")
            continue
        found[policy] = {
            key: metrics[key] for key in (name, interval, "num_episodes") if key in metrics
        }
        label = f"{policy}, on the same starts"
        say(f"{label:<40}{with_interval(metrics, name)}, n = {metrics['num_episodes']}")
    return found


def report_of(cfg: RunCfg) -> Report:
    """Return the report of a run's task."""
    return TASKS[cfg.task.name].report


def headline(cfg: RunCfg) -> str:
    """Return the metric that ranks teams of a task, the first of its headline; higher is better."""
    if not report_of(cfg).headline:
        raise ConfigError(
            f"task.name={cfg.task.name}: its report has no headline metric to rank teams by; add "
            "one"
        )
    return report_of(cfg).headline[0][1]


def describe(request: Request, metrics: Mapping[str, Any]) -> str:
    """Format metrics as text; several seeds add a line for each of them."""
    text = report_of(request.cfg).describe(metrics)  # type: ignore[arg-type]
    if request.is_strict:
        text += describe_strict(metrics)  # type: ignore[arg-type]
    if "useful_impulse_ns" in metrics:
        text += describe_pushing(metrics)  # type: ignore[arg-type]
    for seed, own in metrics.get("per_seed", {}).items():
        name = headline(request.cfg)
        text += (
            f"{f'seed {seed}: {name}':<40}{with_interval(own, name)}, n = {own['num_episodes']}\n"
        )
    return text


def with_interval(metrics: Mapping[str, Any], name: str) -> str:
    """Format a metric, followed by its 95 % interval if it is a rate."""
    interval = metrics.get(f"{name.removesuffix('_rate')}_ci95")
    value = "-" if metrics[name] is None else f"{metrics[name]:.3f}"
    return value if interval is None else f"{value} ({interval[0]:.3f} to {interval[1]:.3f})"


def _metrics(request: Request, parts: Sequence[Columns]) -> Metrics:
    found = as_tensors(join_columns(parts))
    episodes = {name: values for name, values in found.items() if not name.startswith(PREFIX)}
    steps = round(request.cfg.task.episode_length_s / STEP_DT)
    metrics: Metrics = evaluation_worlds.contents(request.cfg)
    metrics |= report_of(request.cfg).summarize(episodes, steps * STEP_DT, STEP_DT)
    for name in report_of(request.cfg).rates:
        if f"{name}_rate" not in metrics:  # the task's report computes no such rate itself
            metrics |= rate(name, (episodes[name] > 0.5) & ~episodes["broken"])
    if request.is_strict:
        metrics |= summarize_strict(episodes)
    if len(found) > len(episodes):
        metrics |= summarize_pushing(found)
    return metrics


def run_of(folder: Path) -> Path | None:
    """Return the run folder of a checkpoint; None if the checkpoint is not in one."""
    return folder.parent.parent if folder.parent.name == run_folder.CHECKPOINTS else None


def table_of_checkpoints(
    request: Request, run: Path, num_workers: int, say: Say
) -> Iterator[dict[str, Any]]:
    """Measure all checkpoints of a run, then the best again on fresh seeds; yield a row each, as
    soon as it is measured.

    Rows are in the order of training. The best of many checkpoints is partly lucky, so that only
    fresh episodes measure it without bias.
    """
    name = headline(request.cfg)
    found = checkpoint.all_checkpoints(run)
    requests = [replace(request, folder=folder) for _, folder in found]
    shares: list[float] = []
    say(f"{'env steps':>14}  {name}, n = {request.num_episodes * len(request.seeds)}")
    for (env_steps, folder), metrics in zip(
        found, measure_all(requests, num_workers, say), strict=True
    ):
        say(f"{env_steps:>14,}  {with_interval(metrics, name)}")
        shares.append(metrics[name] or 0.0)
        yield {"checkpoint": folder.name, "env_steps": env_steps, "is_fresh": False, **metrics}
    best = max(range(len(shares)), key=lambda k: (shares[k], k))
    first = max(request.seeds) + 1
    fresh = tuple(range(first, first + len(request.seeds)))
    again = measure(replace(requests[best], seeds=fresh), num_workers, say)
    seeds = " ".join(map(str, fresh))
    say(
        f"{found[best][0]:>14,}  {with_interval(again, name)}  the best again, on fresh seeds "
        f"({seeds})"
    )
    yield {
        "checkpoint": found[best][1].name,
        "env_steps": found[best][0],
        "is_fresh": True,
        **again,
    }


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of metrics as CSV, with two columns for an interval and without ``per_seed``."""
    flat = []
    for row in rows:
        cells: dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, list) and len(value) == 2:
                cells[f"{name}_low"] = value[0]
                cells[f"{name}_high"] = value[1]
            elif isinstance(value, list):
                cells[name] = format_metric(value)
            elif not isinstance(value, dict):
                cells[name] = value
        flat.append(cells)

    text = io.StringIO()
    columns = list(dict.fromkeys(name for cells in flat for name in cells))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()
