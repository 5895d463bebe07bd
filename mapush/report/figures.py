"""Figures about runs, drawn within ``figure_style``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from harl_mapush.figure_style import panels
from mapush.report.bootstrap import Array
from mapush.report.run_logs import Group, band

SUCCESS = "mapush/success_rate"
_HOURS_S = 3.0 * 3600.0  # longer runs have a time axis in hours


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
