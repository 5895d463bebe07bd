"""Figures of measured metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harl_mapush.figure_style import figure_style, panels, spans

_Rows = Sequence[Mapping[str, Any]]


def draw(rows: _Rows, name: str, path: Path) -> None:
    """Draw the metric ``name``, of checkpoints against env steps or by condition."""
    has_conditions = "condition" in rows[0]
    with figure_style():
        if has_conditions:
            figure, (axes,) = panels(1, 1, 6.4, 0.6 + 0.28 * len(rows))
            _draw_conditions(axes, rows, name)
        else:
            figure, (axes,) = panels(1, 1, 5.4, 3.2)
            _draw_checkpoints(axes, rows, name)
        figure.savefig(path, dpi=150)


def _draw_checkpoints(axes: Any, rows: _Rows, name: str) -> None:
    for is_fresh, style, label in (
        (False, "o-", "as measured"),
        (True, "s", "the best again, on fresh seeds"),
    ):
        series = [row for row in rows if row["is_fresh"] == is_fresh]
        steps = [row["env_steps"] for row in series]
        values = [row[name] for row in series]
        axes.errorbar(steps, values, spans(series, name), fmt=style, label=label, capsize=2)
    axes.set(xlabel="env steps", ylabel=name.replace("_", " "), ylim=(-0.05, 1.05))
    axes.legend()


def _draw_conditions(axes: Any, rows: _Rows, name: str) -> None:
    values = [row[name] for row in rows]
    lines = range(len(rows))
    axes.errorbar(values, lines, xerr=spans(rows, name), fmt="o", capsize=2)
    axes.set_yticks(lines, [row["condition"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"{name.replace('_', ' ')}, 95 % interval")
