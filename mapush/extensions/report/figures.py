"""Figures about runs, drawn within ``figure_style``."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from mapush.extensions.report.figure_style import panels
from mapush.extensions.report.run_logs import Group, band

SUCCESS = "mapush/success_rate"
_COLUMNS = 3


def curves(groups: Sequence[Group], tags: dict[str, str]) -> Figure | None:
    """Draw a panel for each recorded tag of ``tags`` (tag to title), against env steps.

    Lines are interquartile means over runs, bands their 95 % bootstrap intervals. Return None if no
    run has any tag.
    """
    bands = {tag: [band(group, tag, "env_steps") for group in groups] for tag in tags}
    drawn_tags = [tag for tag in tags if any(bands[tag])]
    if not drawn_tags:
        return None
    columns = min(_COLUMNS, len(drawn_tags))
    figure, axes = panels(len(drawn_tags), columns, 3.4, 2.4)
    for panel, tag in zip(axes, drawn_tags, strict=True):
        for k, (group, drawn) in enumerate(zip(groups, bands[tag], strict=True)):
            if drawn is None:
                continue
            # A line at the edge of the panel, such as a rate of 0, is drawn over the axis.
            panel.plot(
                drawn.x, drawn.mean, color=f"C{k}", label=group.label, clip_on=False, zorder=3
            )
            if len(group.runs) > 1:
                panel.fill_between(
                    drawn.x, drawn.low, drawn.high, color=f"C{k}", alpha=0.2, linewidth=0
                )
        panel.set_title(tags[tag])
        panel.margins(x=0.0)
        panel.set_xlim(left=0.0)
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.xaxis.set_major_formatter(EngFormatter())
        if tag == SUCCESS:
            panel.set_ylim(0.0, 1.0)
        elif tag.endswith("_rate"):
            panel.set_ylim(bottom=0.0)
    for panel in axes[-columns:]:  # nothing below it
        panel.set_xlabel("env steps")
    if len(groups) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(groups), columns))
    return figure


def reward_tags(groups: Sequence[Group]) -> dict[str, str]:
    """Return the tags of all reward terms, with titles."""
    runs = [log for group in groups for log in group.runs]
    tags = {tag for log in runs for tag in log.curves if tag.startswith("reward/")}
    return {tag: tag.removeprefix("reward/") for tag in sorted(tags)}
