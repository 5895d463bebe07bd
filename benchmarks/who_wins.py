"""Algorithms by steps and by time to success: ``who_wins.py RUN [RUN ...] [--goals 0.6 0.85]
[--table checkpoints.csv] [--figure FILE]``.

Push-task runs with equal settings except the seed share one table row and one figure line: the
interquartile mean over their seeds with its 95 % bootstrap interval. Success is the calculator's,
for each checkpoint, if the run's folder has a ``checkpoints.csv`` or the file named by ``--table``:

    python -m harl_mapush.test --checkpoint RUN --mode calculator --all_checkpoints --csv
    RUN/checkpoints.csv

A run without it is drawn by its last 1,000 training episodes. These lag behind a learning team, and
the row says so. Between two checkpoints success is interpolated. Seconds count from a run's first
iteration.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mapush.extensions.report.figure_style import COLORS, figure_style, panels
from mapush.extensions.report.run_logs import Curve, Group, RunLog, band, groups, read_run
from mqe.config import ConfigError

GOALS = (0.6, 0.85)
SUCCESS = "success"
TABLE = "checkpoints.csv"
UNITS = {"env_steps": ("env steps [million]", 1e-6), "seconds": ("wall clock [min]", 1.0 / 60.0)}


def read(folder: Path, table: str = TABLE) -> RunLog:
    """Read a run, with the curve of its success in the calculator's ``table``, if there is one."""
    log = read_run(folder)
    lagging = log.curves.get("mapush/success_rate")
    path = folder / table
    success = measured(path, log.curves["mapush/num_episodes"]) if path.is_file() else lagging
    return dataclasses.replace(
        log, curves=log.curves | ({SUCCESS: success} if success is not None else {})
    )


def measured(path: Path, clock: Curve) -> Curve:
    """Read a run's calculator table. ``clock``, any curve from the run, gives each checkpoint's
    time.
    """
    with path.open(encoding="utf-8", newline="") as lines:
        # The best is there twice.
        rows = [row for row in csv.DictReader(lines) if row.get("is_fresh") == "False"]
    if not rows:
        raise ConfigError(
            f"{path} has no success rates of checkpoints; make it anew, as who_wins.py --help says"
        )
    rates = dict(sorted((float(row["env_steps"]), float(row["success_rate"])) for row in rows))
    env_steps = np.array(list(rates))
    return Curve(
        env_steps,
        np.interp(env_steps, clock.env_steps, clock.seconds),
        np.array(list(rates.values())),
    )


def reached(log: RunLog, goal: float, against: str) -> float | None:
    """Return the million env steps, or minutes, until a run's first success rate at this level.
    None: never.
    """
    curve = log.curves.get(SUCCESS)
    where = [] if curve is None else np.flatnonzero(curve.values >= goal)
    if curve is None or not len(where):
        return None
    k = where[0]
    x = getattr(curve, against)
    y = curve.values
    return UNITS[against][1] * float(
        x[0] if k == 0 else np.interp(goal, y[k - 1 : k + 1], x[k - 1 : k + 1])
    )


def table(run_groups: Sequence[Group], goals: Sequence[float] = GOALS, source: str = TABLE) -> str:
    """Return a Markdown row for each group. Commas separate the seeds' values, and a dash means
    never.
    """
    heads = [f"{word} to {goal:g}" for word in ("M env steps", "minutes") for goal in goals]
    heads = ["", "seeds", *heads, "last", "measured by", "M env steps in all", "minutes in all"]
    lines = [heads, ["---"] * len(heads)]
    for group in run_groups:
        digits = {"env_steps": 2, "seconds": 2}
        curves = [log.curves.get(SUCCESS) for log in group.runs]
        lasts = [None if curve is None else float(curve.values[-1]) for curve in curves]
        sources = dict.fromkeys(
            "calculator" if (log.folder / source).is_file() else "training" for log in group.runs
        )
        ends = [log.curves["mapush/num_episodes"] for log in group.runs]
        lines.append(
            [
                group.name,
                ", ".join(str(log.settings["runner.seed"]) for log in group.runs),
                *(
                    each([reached(log, goal, x) for log in group.runs], digits[x])
                    for x in UNITS
                    for goal in goals
                ),
                each(lasts, 3),
                " and ".join(sources),
                *(
                    each([UNITS[x][1] * float(getattr(end, x)[-1]) for end in ends], digits[x])
                    for x in UNITS
                ),
            ]
        )
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def each(values: Sequence[float | None], digits: int) -> str:
    """Format the values of several seeds."""
    return ", ".join("–" if value is None else f"{value:.{digits}f}" for value in values)


def draw(run_groups: Sequence[Group], curve: str = SUCCESS) -> Any:
    """Draw success against env steps and against the wall clock, within ``figure_style``."""
    figure, axes = panels(2, 2, 4.5, 3.4)
    for panel, (against, (words, scale)) in zip(axes, UNITS.items(), strict=True):
        for k, group in enumerate(run_groups):
            drawn = band(group, curve, against)
            if drawn is None:
                continue
            x, mean, low, high = drawn
            style = "-" if k < len(COLORS) else "--"
            panel.plot(scale * x, mean, style, color=f"C{k}", label=group.name)
            panel.fill_between(scale * x, low, high, color=f"C{k}", alpha=0.2, linewidth=0)
        panel.set(xlabel=words, xlim=(0, None), ylim=(0, 1))
    axes[0].set_ylabel("success rate")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def main() -> int:
    """Print the table, and draw the figure on request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--goals", type=float, nargs="+", default=GOALS, help="success rates")
    parser.add_argument("--table", default=TABLE, help="the calculator's table in a run's folder")
    parser.add_argument("--figure", type=Path, help="where to draw it (.png, .svg, .webp)")
    given = parser.parse_args()
    try:
        run_groups = groups([read(run, given.table) for run in given.runs])
    except ConfigError as error:
        parser.exit(2, f"who_wins.py: {error}\n")
    sys.stdout.write(table(run_groups, given.goals, given.table))
    if given.figure is not None:
        with figure_style():
            draw(run_groups).savefig(given.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
