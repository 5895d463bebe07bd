"""Which algorithm learns from fewer steps, and which in less time: ``who_wins.py RUN [RUN ...] [--svg FILE]``.

Runs of the push task that differ in nothing but their seed are one row of the table and one line of the figure: the
mean of its seeds with a band from the least to the largest. Success is the share of the episodes that ended since the
point before, at least 200 of them; the curve ``success_rate``, over the last 1,000, lags behind a team that learns.
Where a run's folder has a ``figures.json`` (``harl_mapush.test --checkpoint RUN --mode calculator --json
RUN/figures.json``), the calculator's success rate stands beside it. Seconds count from a run's first iteration.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from harl_mapush.runs import read_config
from mapush.run_logs import Curve, Group, RunLog, band, groups, read_run
from mqe.config import ConfigError
from mqe.tasks.push.rewards import weights_of

mpl.rcParams.update({"svg.hashsalt": "1", "svg.fonttype": "none"})
EPISODES = 200  # of a point, at least
GOALS = (0.6, 0.85)
EVERY = 8  # points of a band that are drawn
SUCCESS = "success"
UNITS = {"env_steps": ("env steps [million]", 1e-6), "seconds": ("wall clock [min]", 1.0 / 60.0)}


def read(folder: Path) -> RunLog:
    """Read a run, with the curve of its success."""
    log, task = read_run(folder), read_config(folder)["task"]
    weight = weights_of(task["rewards"], task["object"], task["weights"])["reach"]
    found = success(log.curves["reward/reach"], log.curves["mapush/num_episodes"], weight)
    return dataclasses.replace(log, curves=log.curves | ({SUCCESS: found} if len(found.values) else {}))


def success(reach: Curve, num_episodes: Curve, weight: float) -> Curve:
    """Return the share of successes among the episodes that ended since the point before.

    ``reach`` is what successes brought on average in an env step, ``weight`` each. Those before episodes are counted
    (a run's first, whose time limits are spread) do not count.
    """
    successes = np.cumsum(reach.values * np.diff(reach.env_steps, prepend=0.0)) / weight
    first = int(np.argmax(num_episodes.values > 0))
    marks = [first]
    for k in range(first, len(num_episodes.values)):
        if num_episodes.values[k] - num_episodes.values[marks[-1]] >= EPISODES:
            marks.append(k)
    share = np.diff(successes[marks]) / np.diff(num_episodes.values[marks])
    return Curve(reach.env_steps[marks[1:]], reach.seconds[marks[1:]], share)


def reached(log: RunLog, goal: float, against: str) -> float | None:
    """Return after how many million env steps, or minutes, a run first had a success rate; None if it never had."""
    curve = log.curves.get(SUCCESS)
    where = [] if curve is None else np.flatnonzero(curve.values >= goal)
    return UNITS[against][1] * float(getattr(curve, against)[where[0]]) if len(where) else None


def names(found: Sequence[Group]) -> list[str]:
    """Return a short name for each group, the algorithm's, or the group's own where two would have the same."""
    firsts = [group.runs[0].settings for group in found]
    short = [
        f"{each['algorithm.name']}{' with model' if each.get('algorithm.model', 'none') != 'none' else ''}"
        for each in firsts
    ]
    count = Counter(short)
    return [name if count[name] == 1 else group.name for name, group in zip(short, found, strict=True)]


def table(found: Sequence[Group]) -> str:
    """Return a row for each group, in Markdown; the values of seeds are separated by commas, a dash is never."""
    heads = [f"{word} to {goal:g}" for word in ("M env steps", "minutes") for goal in GOALS]
    heads = ["", "seeds", *heads, "last in training", "calculator", "M env steps in all", "minutes in all"]
    lines = [heads, ["---"] * len(heads)]
    for name, group in zip(names(found), found, strict=True):
        digits = {"env_steps": 2, "seconds": 1}
        curves = [log.curves.get(SUCCESS) for log in group.runs]
        lasts = [None if curve is None else float(curve.values[-1]) for curve in curves]
        ends = [log.curves["mapush/num_episodes"] for log in group.runs]
        lines.append([
            name,
            ", ".join(str(log.settings["runner.seed"]) for log in group.runs),
            *(each([reached(log, goal, x) for log in group.runs], digits[x]) for x in UNITS for goal in GOALS),
            each(lasts, 2),
            each([calculated(log) for log in group.runs], 3),
            *(each([UNITS[x][1] * float(getattr(end, x)[-1]) for end in ends], digits[x]) for x in UNITS),
        ])  # fmt: skip
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def each(values: Sequence[float | None], digits: int) -> str:
    """Format the values of several seeds."""
    return ", ".join("–" if value is None else f"{value:.{digits}f}" for value in values)


def calculated(log: RunLog) -> float | None:
    """Return the calculator's success rate, where it was written beside the run."""
    path = log.folder / "figures.json"
    return json.loads(path.read_text(encoding="utf-8"))["success_rate"] if path.is_file() else None


def draw(found: Sequence[Group]) -> Figure:
    """Draw success against env steps and against the wall clock."""
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (against, (words, scale)) in zip(panels, UNITS.items(), strict=True):
        for k, (name, group) in enumerate(zip(names(found), found, strict=True)):
            drawn = band(group, SUCCESS, against)
            if drawn is None:
                continue
            x, mean, low, high = (values[::EVERY] for values in drawn)
            panel.plot(scale * x, mean, color=f"C{k}", label=name)
            panel.fill_between(scale * x, low, high, color=f"C{k}", alpha=0.2, linewidth=0)
        panel.set(xlabel=words, xlim=(0, None), ylim=(0, 1))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("success of training episodes")
    panels[0].legend(frameon=False)
    return figure


def main() -> int:
    """Print the table, and draw the figure where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--svg", type=Path, help="where to draw it")
    given = parser.parse_args()
    try:
        found = groups([read(run) for run in given.runs])
    except ConfigError as error:
        parser.exit(2, f"who_wins.py: {error}\n")
    sys.stdout.write(table(found))
    if given.svg is not None:
        draw(found).savefig(given.svg, metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
