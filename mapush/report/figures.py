"""Figures of runs, drawn with Matplotlib."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import EngFormatter, MaxNLocator

from mapush.report.bootstrap import Array
from mapush.report.run_logs import Group, band
from mapush.report.trajectories import Trajectory
from mqe.registry import TASKS

mpl.rcParams.update(
    {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.prop_cycle": cycler(
            # Okabe and Ito's colours, which colour-blind readers can tell apart.
            color=["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"]
        ),
        "axes.titlesize": 10,
        "grid.alpha": 0.25,
        "font.size": 9,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.h_pad": 0.08,
        "pdf.fonttype": 42,  # whole fonts; publishers refuse Matplotlib's default
    }
)
# Contributions of an agent, without the metrics of its updates.
_AGENT_TAG = re.compile(r"agent\d+/(\w*share|\w*distance)")
# Colours of a task's outcomes, in their order.
COLORS = ("#2a9d4a", "#d1495b", "#e08e22", "#7b4fa3", "#2f6db5", "#8c6d46")
OTHER_COLOR = "#8a8f98"  # the time limit, or a world that broke
SUCCESS = "mapush/success_rate"
_HOURS_S = 3.0 * 3600.0  # runs that are longer have a time axis in hours
_LINE_WIDTH = 80  # characters of a title


def curves(
    groups: Sequence[Group], tags: dict[str, str], against: str = "env_steps", columns: int = 3
) -> Figure | None:
    """Draw a panel for each tag of ``tags`` (tag to title) that a run has.

    Lines are interquartile means over runs, bands their 95 % bootstrap intervals. ``against`` is
    the x-axis, ``env_steps`` or ``seconds``. Return None if no run has any of the tags.
    """
    bands = {tag: [band(group, tag, against) for group in groups] for tag in tags}
    known = [tag for tag in tags if any(bands[tag])]
    if not known:
        return None
    columns = min(columns, len(known))
    rows = -(-len(known) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.4 * rows))
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    longest = max(drawn.x[-1] for tag in known for drawn in bands[tag] if drawn is not None)
    for place, (panel, tag) in enumerate(zip(panels, known, strict=False)):
        for k, (group, drawn) in enumerate(zip(groups, bands[tag], strict=True)):
            if drawn is None:
                continue
            x, words = _x_axis(drawn.x, against, longest)
            # A line at the edge of the panel, such as a rate of 0, is drawn over the axis.
            panel.plot(x, drawn.mean, color=f"C{k}", label=group.label, clip_on=False, zorder=3)
            if len(group.runs) > 1:
                panel.fill_between(x, drawn.low, drawn.high, color=f"C{k}", alpha=0.2, linewidth=0)
            if place + columns >= len(known):  # nothing below it
                panel.set_xlabel(words)
        panel.set_title(tags[tag])
        panel.margins(x=0.0)
        panel.set_xlim(left=0.0)
        if against == "env_steps":
            panel.xaxis.set_major_locator(MaxNLocator(5))
            panel.xaxis.set_major_formatter(EngFormatter())
        if tag == SUCCESS:
            panel.set_ylim(0.0, 1.0)
        elif tag.endswith("_rate"):
            panel.set_ylim(bottom=0.0)
    for panel in panels[len(known) :]:
        panel.set_visible(False)
    if len(groups) > 1:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(groups), columns))
    return figure


def _x_axis(x: Array, against: str, longest: float) -> tuple[Array, str]:
    """Return the values and the label of the x-axis; ``longest`` is the last value of all runs."""
    if against == "env_steps":
        return x, "env steps"
    if longest > _HOURS_S:
        return x / 3600.0, "hours"
    return x / 60.0, "minutes"


def reward_tags(groups: Sequence[Group]) -> dict[str, str]:
    """Return the tags of all reward terms, with titles."""
    tags = {
        tag
        for group in groups
        for log in group.runs
        for tag in log.curves
        if tag.startswith("reward/")
    }
    return {tag: tag.removeprefix("reward/") for tag in sorted(tags)}


def agent_tags(groups: Sequence[Group]) -> dict[str, str]:
    """Return the tags of each agent's contributions, with titles."""
    tags = {
        tag
        for group in groups
        for log in group.runs
        for tag in log.curves
        if _AGENT_TAG.fullmatch(tag)
    }
    return {tag: tag.replace("/", ": ").replace("_", " ") for tag in sorted(tags)}


def from_above(
    name: str, trajectories: Sequence[Trajectory], success_radius: float | None = None
) -> Figure:
    """Draw the objects' paths from above, and a histogram of episode times by outcome.

    ``success_radius`` [m] is that of the goal's disc, None if the task has none.
    """
    colors = outcome_colors()
    figure = Figure(figsize=(10.2, 4.0))
    figure.suptitle(textwrap.fill(name, _LINE_WIDTH), fontsize=10)
    above, times = figure.subplots(1, 2, width_ratios=(1.7, 1.0))
    for each in trajectories:
        path = _turned(each)
        color = colors.get(each.outcome, OTHER_COLOR)
        above.plot(path[:, 0], path[:, 1], color=color, alpha=0.6, linewidth=1)
        above.plot(path[-1, 0], path[-1, 1], ".", color=color)
    starts = np.array([_turned(each)[0] for each in trajectories])
    above.plot(starts[:, 0], starts[:, 1], "k|", markersize=8, label="start")
    if success_radius is not None:
        disc = {"facecolor": "#2a9d4a22", "edgecolor": "#2a9d4a", "linestyle": "--"}
        above.add_patch(Circle((0.0, 0.0), success_radius, label="success radius", **disc))
    above.plot(0.0, 0.0, "*", color="#e0b000", markeredgecolor="k", markersize=12, label="goal")
    above.set_aspect("equal", adjustable="datalim")
    above.set_title("paths of the object, with the goal at the origin")
    above.set_xlabel("along the line from start to goal [m]")
    above.set_ylabel("across it, to the left [m]")
    above.legend(loc="upper left", ncols=3)
    counts = Counter(each.outcome for each in trajectories)
    data = [
        [each.seconds for each in trajectories if each.outcome == outcome] for outcome in counts
    ]
    labels = [f"{outcome}: {number} of {len(trajectories)}" for outcome, number in counts.items()]
    times.hist(
        data,
        bins=20,
        stacked=True,
        color=[colors.get(outcome, OTHER_COLOR) for outcome in counts],
        label=labels,
    )
    times.set_title("durations of episodes")
    times.set_xlabel("seconds")
    times.set_ylabel("episodes")
    times.yaxis.set_major_locator(MaxNLocator(integer=True))
    times.margins(y=0.1 + 0.1 * len(counts))  # room for the legend above the bars
    times.legend(loc="upper left")
    return figure


def outcome_colors() -> dict[str, str]:
    """Return a colour for every outcome of a registered task."""
    found = {}
    for entry in TASKS.values():
        for k, outcome in enumerate(entry.report.outcomes.values()):
            found.setdefault(outcome, COLORS[k % len(COLORS)])
    return found


def _turned(each: Trajectory) -> Array:
    """Return the path (T, 2) relative to the goal, turned so that it begins on the negative x."""
    offset = each.goal - each.path[0]
    x, y = offset / max(float((offset**2).sum()) ** 0.5, 1e-9)
    moved = each.path - each.goal
    turned = moved.copy()
    turned[:, 0] = moved[:, 0] * x + moved[:, 1] * y
    turned[:, 1] = moved[:, 1] * x - moved[:, 0] * y
    return turned
