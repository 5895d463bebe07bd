"""Figures of measured metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harl_mapush.figures import figure_style, panels, spans


def draw_checkpoints(rows: Sequence[Mapping[str, Any]], name: str, path: Path) -> None:
    """Draw the metric ``name`` of a run's checkpoints, the table's rows, against env steps."""
    with figure_style():
        figure, (axes,) = panels(1, 1, 5.4, 3.2)
        for is_fresh, style, label in (
            (False, "o-", "as measured"),
            (True, "s", "the best again, on fresh seeds"),
        ):
            measured = [row for row in rows if row["is_fresh"] == is_fresh]
            axes.errorbar(
                [row["env_steps"] for row in measured],
                [row[name] for row in measured],
                spans(measured, name),
                fmt=style,
                label=label,
                capsize=2,
            )
        axes.set(xlabel="env steps", ylabel=name.replace("_", " "), ylim=(-0.05, 1.05))
        axes.legend()
        figure.savefig(path, dpi=150)


def draw_conditions(rows: Sequence[Mapping[str, Any]], name: str, path: Path) -> None:
    """Draw the metric ``name`` of the teams in ``rows`` under each condition."""
    teams = list(dict.fromkeys(row["checkpoint"] for row in rows))
    conditions = list(dict.fromkeys(row["condition"] for row in rows))
    with figure_style():
        figure, (axes,) = panels(1, 1, 6.4, 0.6 + 0.28 * len(conditions))
        for k, team in enumerate(teams):
            measured = [row for row in rows if row["checkpoint"] == team]
            # Teams stand side by side at each condition.
            shift = 0.5 * (k / max(len(teams) - 1, 1) - 0.5) if len(teams) > 1 else 0.0
            axes.errorbar(
                [row[name] for row in measured],
                [conditions.index(row["condition"]) + shift for row in measured],
                xerr=spans(measured, name),
                fmt="o",
                label=team,
                capsize=2,
            )
        axes.set_yticks(range(len(conditions)), conditions)
        axes.set_ylim(len(conditions) - 0.5, -0.5)
        axes.set_xlabel(f"{name.replace('_', ' ')}, 95 % interval")
        if len(teams) > 1:
            axes.legend()
        figure.savefig(path, dpi=150)
