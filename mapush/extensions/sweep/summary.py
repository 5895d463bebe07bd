"""The results of a sweep: ``summary.md``, ``trials.csv``, ``best.yaml`` and ``summary.png``."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harl_mapush.runs import durable
from mapush.extensions.sweep.space import Space, settings_of
from mapush.extensions.sweep.trials import (
    CONFIRM,
    FAILED,
    FINISHED,
    OPEN,
    STOPPED,
    Ledger,
    Setting,
    Trial,
    best_first,
    contenders,
    order_of_merit,
)
from mqe.config import dump_yaml

SUMMARY = "summary.md"
TABLE = "trials.csv"
BEST = "best.yaml"
FIGURE = "summary.png"
_MANY = 40  # least number of trials for a reliable importance
_NUM_BEST = 10  # settings that the page shows
_MOST_PANELS = 6  # parameters that the figure shows, the most important ones
_COLORS = {FINISHED: "#2f6db5", STOPPED: "#e08e22", FAILED: "#d1495b"}
_CONFIRMING = "#2a9d4a"
_RUNNING = "#8a8f98"
_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 9,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
_WORDS = {FINISHED: "finished", STOPPED: "stopped early", FAILED: "failed", OPEN: "not over"}


def write_summary(
    space: Space, ledger: Ledger, ranked: Sequence[Setting], shares: Mapping[str, float]
) -> list[Path]:
    """Write the results of a sweep to its folder; return the files."""
    folder = ledger.folder
    durable.write_text(folder / SUMMARY, page(space, ledger.trials, ranked, shares))
    durable.write_text(folder / TABLE, table(space, ledger.trials))
    written = [folder / SUMMARY, folder / TABLE]
    if ranked:
        values = {**ranked[0].values, "runner.seed": ranked[0].trials[0].seed}
        durable.write_text(folder / BEST, dump_yaml(settings_of(space.base, values)[1]))
        written.append(folder / BEST)
    drawn = figure(space, ledger.trials, ranked, shares)
    if drawn is not None:
        drawn.savefig(folder / FIGURE, dpi=110)
        written.append(folder / FIGURE)
    return written


def page(
    space: Space, trials: Sequence[Trial], ranked: Sequence[Setting], shares: Mapping[str, float]
) -> str:
    """Return the summary as Markdown."""
    cfg = space.cfg
    keys = [parameter.key for parameter in space.parameters]
    numbers = [
        f"{sum(t.state == state for t in trials)} {words}" for state, words in _WORDS.items()
    ]
    better = "more" if cfg.mode == "max" else "less"
    parts = [
        "# Sweep",
        f"{len(trials)} trials ({', '.join(numbers)}), search {cfg.search}; compared by "
        f"`{cfg.metric}` at the end of {space.run.runner.num_env_steps:,} env steps, {better} is "
        "better.",
        "## Best settings",
    ]
    if ranked:
        rows = [
            [i + 1, *(_short(setting.values[key]) for key in keys), *_worth(setting)]
            for i, setting in enumerate(ranked[:_NUM_BEST])
        ]
        parts += [
            _markdown(["", *keys, cfg.metric, "95 % interval", "seeds", "trials"], rows),
            _caveat(space, ranked),
        ]
        tied = list(itertools.takewhile(lambda each: each.mean == ranked[0].mean, ranked))
        if len(tied) > 1:
            parts.append(_ties(space, ranked[0].mean, len(tied), len(ranked)))
        ahead = _stopped_ahead(trials, cfg.mode)
        if ahead:
            rows = [
                [t.number, *(_short(t.values[key]) for key in keys), t.env_steps, f"{t.value:.3f}"]
                for t in ahead[:_NUM_BEST]
            ]
            parts += [
                "These trials were stopped early with a value that a finished one did not reach. "
                "They are not ranked above, because they had fewer env steps; `confirm` counts "
                "them.",
                _markdown(["trial", *keys, "env steps", cfg.metric], rows),
            ]
    else:
        parts.append("No trial has finished.")
    if shares:
        count = len(order_of_merit(trials, cfg.mode))
        few = "" if count >= _MANY else " So few trials give a rough estimate only."
        parts += [
            "## Importance",
            _markdown(
                ["setting", "share"], [[key, f"{share:.2f}"] for key, share in shares.items()]
            ),
            "Importance (PED-ANOVA) is the share of each setting in the difference between the "
            f"best quarter of {count} trials and the rest; a trial that was stopped early counts "
            f"as worse than any that finished.{few}",
        ]
    failed = [trial for trial in trials if trial.state == FAILED]
    if failed:
        rows = [
            [t.number, *(_short(t.values[key]) for key in keys), t.seed, t.reason] for t in failed
        ]
        parts += ["## Failed trials", _markdown(["trial", *keys, "seed", "reason"], rows)]
    return "\n\n".join(parts) + "\n"


def table(space: Space, trials: Sequence[Trial]) -> str:
    """Return all trials as CSV."""
    keys = [parameter.key for parameter in space.parameters]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    outcome = ["seed", "stage", "state", "env_steps", space.cfg.metric, "reason"]
    writer.writerow(["trial", "setting", *keys, *outcome])
    for t in trials:
        value = "" if math.isnan(t.value) else repr(t.value)
        chosen = [t.values[key] for key in keys]
        outcome = [t.seed, t.stage, t.state, t.env_steps, value, t.reason or ""]
        writer.writerow([t.number, t.setting, *chosen, *outcome])
    return stream.getvalue()


def figure(
    space: Space, trials: Sequence[Trial], ranked: Sequence[Setting], shares: Mapping[str, float]
) -> Figure | None:
    """Draw trials, curves, seeds, importance, and the metric against each setting.

    Return None if no trial has a point.
    """
    known = [trial for trial in trials if trial.points]
    if not known:
        return None
    keys = list(shares) or [parameter.key for parameter in space.parameters]
    confirmed = [setting for setting in ranked if setting.interval is not None][:_NUM_BEST]
    with mpl.rc_context(_STYLE):
        num_panels = 2 + bool(confirmed) + bool(shares) + len(keys[:_MOST_PANELS])
        columns = min(4, num_panels)
        made = Figure(figsize=(3.7 * columns, 2.9 * -(-num_panels // columns)))
        panels = list(made.subplots(-(-num_panels // columns), columns, squeeze=False).flatten())
        for panel in panels[num_panels:]:
            panel.set_visible(False)
        free = iter(panels)
        _draw_order(next(free), space, known)
        _draw_curves(next(free), space, known)
        if confirmed:
            _draw_intervals(next(free), space, confirmed)
        if shares:
            panel = next(free)
            panel.barh(list(shares)[::-1], list(shares.values())[::-1], color=_COLORS[FINISHED])
            panel.set_title("importance: share")
            panel.tick_params(axis="y", labelsize=7)
        for key in keys[:_MOST_PANELS]:
            _draw_setting(next(free), space, key, known)
    return made


def _draw_order(panel: Any, space: Space, trials: Sequence[Trial]) -> None:
    first_stage = [trial for trial in trials if trial.stage != CONFIRM]
    for state, color in _COLORS.items():
        of_state = [trial for trial in first_stage if trial.state == state]
        if of_state:
            label = f"{_WORDS[state]} ({len(of_state)})"
            panel.plot(
                [t.number for t in of_state],
                [t.value for t in of_state],
                "o",
                ms=4,
                color=color,
                label=label,
            )
    best = None
    numbers = []
    values = []
    for trial in first_stage:
        candidates = [each for each in (best, trial) if each is not None]
        ranked = best_first(candidates, space.cfg.mode)
        if ranked:
            best = ranked[0]
        if best is not None:
            numbers.append(trial.number)
            values.append(best.value)
    panel.step(
        numbers, values, where="post", color="#555", linewidth=1, label="best finished so far"
    )
    panel.set_title(space.cfg.metric)
    panel.set_xlabel("trial")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.legend(fontsize=7)


def _draw_curves(panel: Any, space: Space, trials: Sequence[Trial]) -> None:
    for trial in trials:
        color = _COLORS.get(trial.state, _RUNNING)
        if trial.stage == CONFIRM:
            color = _CONFIRMING
        panel.plot(
            *zip(*trial.points, strict=True), color=color, alpha=0.6, linewidth=1, marker=".", ms=3
        )
    panel.set_title(f"{space.cfg.metric}, every trial")
    panel.set_xlabel("env steps")
    if any(trial.stage == CONFIRM for trial in trials):
        panel.plot([], [], color=_CONFIRMING, label="best settings, other seeds")
        panel.legend(fontsize=7)


def _draw_intervals(panel: Any, space: Space, settings: Sequence[Setting]) -> None:
    for i, setting in enumerate(settings):
        assert setting.interval is not None
        panel.plot(setting.interval, [i, i], color=_COLORS[FINISHED], linewidth=2)
        panel.plot(
            [t.value for t in setting.trials], [i] * len(setting.trials), ".", color=_CONFIRMING
        )
        panel.plot(setting.mean, i, "o", color=_COLORS[FINISHED])
    panel.set_yticks(range(len(settings)), [f"setting {setting.number}" for setting in settings])
    panel.invert_yaxis()
    panel.set_title("over seeds: mean, 95 % interval, runs", fontsize=9)
    panel.set_xlabel(space.cfg.metric)


def _draw_setting(panel: Any, space: Space, key: str, trials: Sequence[Trial]) -> None:
    (parameter,) = [parameter for parameter in space.parameters if parameter.key == key]
    searched = [trial for trial in trials if trial.stage != CONFIRM]
    groups = {
        color: [trial for trial in searched if trial.state == state]
        for state, color in _COLORS.items()
    }
    groups[_CONFIRMING] = [trial for trial in trials if trial.stage == CONFIRM]
    for color, several in groups.items():
        values = [trial.values[key] for trial in several]
        xs = [parameter.choices.index(value) for value in values] if parameter.choices else values
        panel.plot(xs, [trial.value for trial in several], "o", ms=4, color=color, alpha=0.7)
    if parameter.choices:
        panel.set_xticks(
            range(len(parameter.choices)),
            [_short(choice) for choice in parameter.choices],
            fontsize=7,
        )
        panel.set_xlim(-0.5, len(parameter.choices) - 0.5)
    elif parameter.is_log:
        panel.set_xscale("log")
    panel.set_title(key)


def _worth(setting: Setting) -> list[object]:
    interval = "-"
    if setting.interval is not None:
        interval = f"{setting.interval[0]:.3f} to {setting.interval[1]:.3f}"
    seeds = ", ".join(str(trial.seed) for trial in setting.trials)
    numbers = ", ".join(str(trial.number) for trial in setting.trials)
    return [f"{setting.mean:.3f}", interval, seeds, numbers]


def _caveat(space: Space, ranked: Sequence[Setting]) -> str:
    """Return a sentence on how to read the intervals of the table."""
    if space.cfg.search == "grid":
        return "Intervals are of the mean over seeds (Student's t)."
    if any(setting.interval is not None for setting in ranked):
        return (
            "Intervals are of the mean over seeds (Student's t) that the search did not use. "
            "Settings without an interval have the single run that the search chose; expect lower "
            "values with other seeds."
        )
    return (
        "Each setting has one run, and these are the best of many: expect lower values with other "
        "seeds. `seeds: [...]` trains the best settings again."
    )


def _stopped_ahead(trials: Sequence[Trial], mode: str) -> list[Trial]:
    """Return the stopped trials that are better than some finished one, the best first."""
    ordered = contenders(trials, mode)
    finished = [k for k, trial in enumerate(ordered) if trial.state == FINISHED]
    last = finished[-1] if finished else 0
    return [trial for trial in ordered[:last] if trial.state == STOPPED]


def _ties(space: Space, mean: float, num_tied: int, num_settings: int) -> str:
    """Return a warning that the first settings of the table are equally good."""
    return (
        f"Warning: the first {num_tied} of {num_settings} settings are tied, with "
        f"`{space.cfg.metric}` {mean:.3f}, so their order has no meaning. A larger "
        "`num_env_steps`, another metric (such as `mapush/return`) or more `seeds` may tell them "
        "apart."
    )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _markdown(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )
