"""Figures of runs, drawn with Matplotlib."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from mapush.report.run_logs import Group, band
from mapush.report.trajectories import Trajectory
from mqe.registry import TASKS

mpl.rcParams.update(
    {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "font.size": 9,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
    }
)
# Contributions of an agent, without the metrics of its updates.
_AGENT_TAG = re.compile(r"agent\d+/(\w*share|\w*distance)")
# Colours of a task's outcomes, in their order.
COLORS = ("#2a9d4a", "#d1495b", "#e08e22", "#7b4fa3", "#2f6db5", "#8c6d46")
OTHER_COLOR = "#8a8f98"  # the time limit, or a world that broke
AXES = {"env_steps": ("env steps", 1.0), "seconds": ("minutes", 1.0 / 60.0)}


def curves(
    groups: Sequence[Group], tags: dict[str, str], against: str = "env_steps", columns: int = 3
) -> Figure | None:
    """Draw a panel for each tag of ``tags`` (tag to title) that a run has.

    Lines are means over seeds, bands reach from the minimum to the maximum. Return None if no run
    has any of the tags.
    """
    words, scale = AXES[against]
    known = {
        tag: title
        for tag, title in tags.items()
        if any(band(group, tag, against) for group in groups)
    }
    if not known:
        return None
    columns = min(columns, len(known))
    rows = -(-len(known) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.5 * rows))
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, (tag, title) in zip(panels, known.items(), strict=False):
        for k, group in enumerate(groups):
            drawn = band(group, tag, against)
            if drawn is None:
                continue
            x, mean, low, high = drawn
            panel.plot(scale * x, mean, color=f"C{k}", label=group.name)
            if len(group.runs) > 1:
                panel.fill_between(scale * x, low, high, color=f"C{k}", alpha=0.2, linewidth=0)
        panel.set_title(title)
        panel.set_xlabel(words)
    for panel in panels[len(known) :]:
        panel.set_visible(False)
    if len(groups) > 1:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=1)
    return figure


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


def from_above(name: str, trajectories: Sequence[Trajectory]) -> Figure:
    """Draw the objects' paths from above, and a histogram of episode times by outcome."""
    colors = outcome_colors()
    figure = Figure(figsize=(10.8, 4.2))
    above, times = figure.subplots(1, 2, width_ratios=(1.6, 1.0))
    for each in trajectories:
        path = _turned(each)
        color = colors.get(each.outcome, OTHER_COLOR)
        above.plot(path[:, 0], path[:, 1], color=color, alpha=0.6, linewidth=1)
        above.plot(path[-1, 0], path[-1, 1], ".", color=color)
    above.plot(0.0, 0.0, "k+", label="start")
    above.set_aspect("equal")
    above.set_title(f"{name}: objects from above, turned so that the goal lies to the right")
    above.set_xlabel("towards the goal [m]")
    above.set_ylabel("to the left [m]")
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
    times.legend()
    return figure


def outcome_colors() -> dict[str, str]:
    """Return a colour for every outcome of a registered task."""
    found = {}
    for entry in TASKS.values():
        for k, outcome in enumerate(entry.report.outcomes.values()):
            found.setdefault(outcome, COLORS[k % len(COLORS)])
    return found


def _turned(each: Trajectory) -> Any:
    """Return the path (T, 2) relative to its start, turned so that the goal is along x."""
    offset = each.goal - each.path[0]
    x, y = offset / max(float((offset**2).sum()) ** 0.5, 1e-9)
    moved = each.path - each.path[0]
    turned = moved.copy()
    turned[:, 0] = moved[:, 0] * x + moved[:, 1] * y
    turned[:, 1] = moved[:, 1] * x - moved[:, 0] * y
    return turned
