"""Metrics of episodes, pooled and by seed, and as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from harl_mapush.config import RunCfg
from harl_mapush.evaluation import push_watcher
from harl_mapush.evaluation.episodes import (
    PUSHING,
    Columns,
    Request,
    as_tensors,
    join_columns,
    play_request,
)
from harl_mapush.runs import evaluation_worlds
from mqe.config import ConfigError
from mqe.registry import TASKS
from mqe.tasks.episode_report import Metrics, Report, with_interval
from mqe.world.scene import STEP_DT


def measure(request: Request) -> dict[str, Any]:
    """Return the calculator's metrics, pooled over seeds. Several seeds add ``per_seed``."""
    by_seed = play_request(request)
    metrics: dict[str, Any] = dict(_metrics(request, list(by_seed.values())))
    if len(by_seed) > 1:
        metrics["per_seed"] = {
            str(seed): _metrics(request, [columns]) for seed, columns in by_seed.items()
        }
    return metrics


def _metrics(request: Request, parts: Sequence[Columns]) -> Metrics:
    columns = as_tensors(join_columns(parts))
    episodes = {name: values for name, values in columns.items() if "/" not in name}
    steps = round(request.cfg.task.episode_length_s / STEP_DT)
    metrics: Metrics = evaluation_worlds.contents(request.cfg)
    metrics |= report_of(request.cfg).metrics(episodes, steps * STEP_DT, STEP_DT)
    pushes = {
        name.removeprefix(PUSHING): values
        for name, values in columns.items()
        if name.startswith(PUSHING)
    }
    if pushes:
        metrics |= push_watcher.summarize(pushes | {"broken": episodes["broken"]})
    return metrics


def report_of(cfg: RunCfg) -> Report:
    """Return the report of a run's task."""
    return TASKS[cfg.task.name].report


def headline(cfg: RunCfg) -> str:
    """Return the metric for ranking a task's teams, the first in its headline. More is better."""
    if not report_of(cfg).headline:
        raise ConfigError(
            f"task.name={cfg.task.name}: its report has no headline metric to rank teams by; add "
            "one"
        )
    return report_of(cfg).headline[0][1]


def describe(request: Request, metrics: Mapping[str, Any]) -> str:
    """Format metrics as text. Several seeds add a line each."""
    text = report_of(request.cfg).describe(metrics)  # type: ignore[arg-type]
    if request.is_watched:
        text += push_watcher.describe(metrics)  # type: ignore[arg-type]
    for seed, of_seed in metrics.get("per_seed", {}).items():
        name = headline(request.cfg)
        count = of_seed["num_episodes"]
        text += f"{f'seed {seed}: {name}':<40}{with_interval(of_seed, name)}, n = {count}\n"
    return text
