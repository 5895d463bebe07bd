"""Figures of measured metrics, drawn with Matplotlib if it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mqe.config import ConfigError

SUFFIXES = (".png", ".svg", ".pdf")


def check_figure(name: str) -> None:
    """Raise ConfigError for a file name that no figure can be written to."""
    if Path(name).suffix not in SUFFIXES:
        raise ConfigError(
            f"--figure {name!r}: must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--figure: Matplotlib is missing; pip install 'mapush[report]'")


def draw_checkpoints(rows: Sequence[Mapping[str, Any]], name: str, path: Path) -> None:
    """Draw the metric ``name`` of a run's checkpoints, the table's rows, against env steps."""
    figure, axes = _axes(5.4, 3.2)
    for is_fresh, style, label in (
        (False, "o-", "as measured"),
        (True, "s", "the best again, on fresh seeds"),
    ):
        own = [row for row in rows if row["is_fresh"] == is_fresh]
        values = [row[name] for row in own]
        axes.errorbar(
            [row["env_steps"] for row in own],
            values,
            _spans(own, name),
            fmt=style,
            label=label,
            capsize=2,
        )
    axes.set_xlabel("env steps")
    axes.set_ylim(-0.05, 1.05)
    axes.set_ylabel(name.replace("_", " "))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def draw_conditions(rows: Sequence[Mapping[str, Any]], name: str, path: Path) -> None:
    """Draw the metric ``name`` of the teams in ``rows`` under each condition."""
    teams = list(dict.fromkeys(row["checkpoint"] for row in rows))
    conditions = list(dict.fromkeys(row["condition"] for row in rows))
    figure, axes = _axes(6.4, 0.6 + 0.28 * len(conditions))
    for k, team in enumerate(teams):
        own = [row for row in rows if row["checkpoint"] == team]
        shift = 0.0
        if len(teams) > 1:
            shift = 0.5 * (k / (len(teams) - 1) - 0.5)
        places = [conditions.index(row["condition"]) + shift for row in own]
        axes.errorbar(
            [row[name] for row in own],
            places,
            xerr=_spans(own, name),
            fmt="o",
            label=team,
            capsize=2,
        )
    axes.set_yticks(range(len(conditions)), conditions)
    axes.set_ylim(len(conditions) - 0.5, -0.5)
    axes.set_xlabel(f"{name.replace('_', ' ')}, 95 % interval")
    if len(teams) > 1:
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _axes(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # optional: the extra "report"

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _spans(rows: Sequence[Mapping[str, Any]], name: str) -> list[list[float]] | None:
    """Return the error bars below and above the values; None for a metric without an interval."""
    key = f"{name.removesuffix('_rate')}_ci95"
    if any(key not in row for row in rows):
        return None
    below = [row[name] - row[key][0] for row in rows]
    above = [row[key][1] - row[name] for row in rows]
    return [below, above]
