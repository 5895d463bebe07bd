"""Figures about runs, drawn within ``figure_style``."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import EngFormatter, MaxNLocator

from harl_mapush.figure_style import panels
from mapush.report.bootstrap import Array
from mapush.report.run_logs import Group, band
from mapush.report.trajectories import Played, Trajectory
from mqe.registry import TASKS

# Colours of a task's outcomes, in their order.
COLORS = ("#2a9d4a", "#d1495b", "#e08e22", "#7b4fa3", "#2f6db5", "#8c6d46")
OTHER_COLOR = "#8a8f98"  # the time limit, or a broken world
SUCCESS = "mapush/success_rate"
_HOURS_S = 3.0 * 3600.0  # longer runs have a time axis in hours
_LINE_WIDTH = 80  # characters of a title


def curves(
    groups: Sequence[Group], tags: dict[str, str], against: str = "env_steps", columns: int = 3
) -> Figure | None:
    """Draw a panel for each tag in ``tags`` (tag to title), without tags unknown to all runs.

    Lines are interquartile means over runs, bands their 95 % bootstrap intervals. ``against`` is
    the x-axis, ``env_steps`` or ``seconds``. Return None if no run has any tag.
    """
    bands = {tag: [band(group, tag, against) for group in groups] for tag in tags}
    drawn_tags = [tag for tag in tags if any(bands[tag])]
    if not drawn_tags:
        return None
    columns = min(columns, len(drawn_tags))
    figure, axes = panels(len(drawn_tags), columns, 3.4, 2.4)
    longest = max(drawn.x[-1] for tag in drawn_tags for drawn in bands[tag] if drawn is not None)
    for number, (panel, tag) in enumerate(zip(axes, drawn_tags, strict=True)):
        for k, (group, drawn) in enumerate(zip(groups, bands[tag], strict=True)):
            if drawn is None:
                continue
            x, words = _x_axis(drawn.x, against, longest)
            # A line at the edge of the panel, such as a rate of 0, is drawn over the axis.
            panel.plot(x, drawn.mean, color=f"C{k}", label=group.label, clip_on=False, zorder=3)
            if len(group.runs) > 1:
                panel.fill_between(x, drawn.low, drawn.high, color=f"C{k}", alpha=0.2, linewidth=0)
            if number + columns >= len(drawn_tags):  # nothing below it
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
    if len(groups) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(groups), columns))
    return figure


def _x_axis(x: Array, against: str, longest: float) -> tuple[Array, str]:
    """Return values and label for the x-axis, given the last value over all runs, ``longest``."""
    if against == "env_steps":
        return x, "env steps"
    if longest > _HOURS_S:
        return x / 3600.0, "hours"
    return x / 60.0, "minutes"


def reward_tags(groups: Sequence[Group]) -> dict[str, str]:
    """Return the tags of all reward terms, with titles."""
    return {tag: tag.removeprefix("reward/") for tag in _tags(groups, r"reward/.*")}


def agent_tags(groups: Sequence[Group]) -> dict[str, str]:
    """Return the tags for each agent's contributions, with titles."""
    tags = _tags(groups, r"agent\d+/(\w*share|\w*distance)")
    return {tag: tag.replace("/", ": ").replace("_", " ") for tag in tags}


def _tags(groups: Sequence[Group], pattern: str) -> list[str]:
    """Return all runs' tags for a regular expression, in order."""
    tags: set[str] = set()
    for group in groups:
        for log in group.runs:
            tags |= set(log.curves)
    return sorted(tag for tag in tags if re.fullmatch(pattern, tag))


def from_above(name: str, played: Played) -> Figure:
    """Draw the objects' paths from above, and a histogram of episode times by outcome."""
    colors = outcome_colors()
    trajectories = played.trajectories
    figure = Figure(figsize=(10.2, 4.0))
    figure.suptitle(textwrap.fill(name, _LINE_WIDTH), fontsize=10)
    above, times = figure.subplots(1, 2, width_ratios=(1.7, 1.0))
    paths = [_turned(trajectory) for trajectory in trajectories]
    for path, trajectory in zip(paths, trajectories, strict=True):
        color = colors.get(trajectory.outcome, OTHER_COLOR)
        above.plot(path[:, 0], path[:, 1], color=color, alpha=0.6, linewidth=1)
        above.plot(path[-1, 0], path[-1, 1], ".", color=color)
    starts = np.array([path[0] for path in paths])
    above.plot(starts[:, 0], starts[:, 1], "k|", markersize=8, label="start")
    if played.success_radius is not None:
        disc = {"facecolor": "#2a9d4a22", "edgecolor": "#2a9d4a", "linestyle": "--"}
        above.add_patch(Circle((0.0, 0.0), played.success_radius, label="success radius", **disc))
    above.plot(0.0, 0.0, "*", color="#e0b000", markeredgecolor="k", markersize=12, label="goal")
    above.set_aspect("equal", adjustable="datalim")
    above.set_title("paths of the object, with the goal at the origin")
    above.set_xlabel("along the line from start to goal [m]")
    above.set_ylabel("across it, to the left [m]")
    above.legend(loc="upper left", ncols=3)
    counts = Counter(trajectory.outcome for trajectory in trajectories)
    seconds: dict[str, list[float]] = {outcome: [] for outcome in counts}
    for trajectory in trajectories:
        seconds[trajectory.outcome].append(trajectory.seconds)
    times.hist(
        list(seconds.values()),
        bins=20,
        stacked=True,
        color=[colors.get(outcome, OTHER_COLOR) for outcome in counts],
        label=[f"{words}: {number} of {len(paths)}" for words, number in counts.items()],
    )
    times.set_title("durations of episodes")
    times.set_xlabel("seconds")
    times.set_ylabel("episodes")
    times.yaxis.set_major_locator(MaxNLocator(integer=True))
    times.margins(y=0.1 + 0.1 * len(counts))  # room for the legend above the bars
    times.legend(loc="upper left")
    return figure


def outcome_colors() -> dict[str, str]:
    """Return a colour for every outcome in the registered tasks."""
    colors = {}
    for entry in TASKS.values():
        for k, outcome in enumerate(entry.report.outcomes.values()):
            colors.setdefault(outcome, COLORS[k % len(COLORS)])
    return colors


def _turned(trajectory: Trajectory) -> Array:
    """Return the path (T, 2) relative to the goal, with its start on the negative x axis."""
    offset = trajectory.goal - trajectory.path[0]
    x, y = offset / max(float(np.linalg.norm(offset)), 1e-9)
    return (trajectory.path - trajectory.goal) @ np.array([[x, -y], [y, x]])
