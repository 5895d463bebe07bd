"""Reference pages, generated from the registries."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import MISSING, Field, fields
from io import StringIO
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.algorithms.entries import ALGORITHMS, AlgorithmEntry
from harl_mapush.clients.entries import CLIENTS
from harl_mapush.config.other_names import NAMES, NOTHING, TRAIN_FLAGS, dotted
from harl_mapush.evaluation import push_watcher
from harl_mapush.runs.formats import FORMATS
from harl_mapush.runs.resume import CHANGEABLE_ON_RESUME
from mapush.commands import COMMANDS, load
from mqe.config import flatten
from mqe.extensions import load_extensions
from mqe.pretrained import PRETRAINED, pretrained_names
from mqe.registry import SIMULATORS, TASKS
from mqe.tasks.push import episode_report
from mqe.tasks.push.rewards import REWARDS
from mqe.tasks.push.settings import PRESETS, PushCfg
from mqe.tasks.term_settings import chosen_weights
from mqe.tasks.terms import ObservationTerm, Term, TermRegistry
from mqe.world.objects import OBJECTS
from mqe.world.robots import ROBOTS

ROOT = Path(__file__).parents[2]
WIDTH = "88"  # columns of a command's help


def pages() -> dict[str, str]:
    """Return the text of every page by its path."""
    load_extensions()
    made: dict[str, Callable[[], str]] = {
        "settings": settings,
        "terms": terms,
        "tasks": tasks,
        "objects": objects,
        "robots": robots,
        "presets": presets,
        "metrics": metrics,
        "commands": commands,
    }
    return {f"reference/{name}.md": make() for name, make in made.items()}


def settings() -> str:
    """Return the page of all settings, a table for each section."""
    parts = [
        "# Settings",
        "Every setting of a run file, and of `--set SECTION.KEY=VALUE`. `mapush settings PATTERN` "
        "lists those that contain a word. Settings marked with \u21bb may change when a run "
        "[resumes](../guides/resume.md).",
    ]
    sections: dict[str, dict[str, type]] = {
        f"`{name}`": {name: cls} for name, cls in config.SECTION_CLASSES.items()
    }
    sections |= {f"`task` of `{name}`": {"task": entry.cfg} for name, entry in TASKS.items()}
    for title, classes in sections.items():
        parts += [f"## {title}", _settings_table(dotted(classes))]

    # A setting that is the same in several algorithms is one row.
    owners: dict[tuple[str, ...], list[str]] = {}
    for algorithm, entry in ALGORITHMS.items():
        for key, field in dotted({"algorithm": entry.cfg}).items():
            owners.setdefault(_setting_row(key, field), []).append(algorithm)
    rows = [
        (*row, "all" if len(names) == len(ALGORITHMS) else ", ".join(names))
        for row, names in sorted(owners.items(), key=lambda item: -len(item[1]))
        if row[0] != "`algorithm.name`"
    ]
    parts += ["## `algorithm`", table((*_SETTING_HEAD, "algorithms"), rows)]
    names = [(f"`{name}`", f"`{key}`") for name, key in NAMES.items()]
    names += [(f"`{name}`", advice) for name, advice in NOTHING.items()]
    flags = [
        (f"`--{flag}`", _codes(other.keys) if other.keys else "so it is always")
        for flag, other in TRAIN_FLAGS.items()
    ]
    parts += [
        "## Names in other libraries",
        "Of HARL, rsl_rl, Stable-Baselines3, CleanRL and Isaac Lab. An error suggests ours.",
        table(("there", "here"), names),
        "`mapush train` also understands these flags of HARL and MAPush:",
        table(("there", "here"), flags),
    ]
    return _join(parts)


_SETTING_HEAD = ("setting", "meaning", "default", "range")


def _settings_table(found: Mapping[str, Field[Any]]) -> str:
    return table(_SETTING_HEAD, [_setting_row(key, field) for key, field in found.items()])


def _setting_row(key: str, field: Field[Any]) -> tuple[str, ...]:
    """Return name, meaning, default and range of a setting."""
    default: Any = "must be given"
    if field.default is not MISSING:
        default = field.default
    elif field.default_factory is not MISSING:
        default = field.default_factory()
    mark = " \u21bb" if key in CHANGEABLE_ON_RESUME else ""
    shown = f"`{_yaml(default)}`"
    return f"`{key}`{mark}", field.metadata.get("help", ""), shown, _range(field.metadata)


def _range(limits: Mapping[str, Any]) -> str:
    """Format the values that a setting may have."""
    if "choices" in limits:
        return ", ".join(f"`{choice}`" for choice in limits["choices"])
    numbers = {name: _bound(limits[name]) for name in ("min", "above", "max") if name in limits}
    if "min" in numbers and "max" in numbers:
        return f"{numbers['min']} to {numbers['max']}"
    signs = {"min": "\u2265", "above": ">", "max": "\u2264"}
    return ", ".join(f"{signs[name]} {number}" for name, number in numbers.items())


def _bound(value: float) -> str:
    return f"{value:,}" if abs(value) < 2**53 else "2^63 - 1"


def terms() -> str:
    """Return the page of the terms of all tasks."""
    parts = [
        "# Terms",
        "What robots and critic observe, what is rewarded, what ends an episode, and what is "
        "measured. Every reward is given at every control step and logged as `reward/NAME`; "
        "`task.weights.NAME` sets its weight, and without a weight it is off. "
        "[Own terms](../guides/terms.md) adds others.",
    ]
    for name, entry in TASKS.items():
        if entry.terms is not None:
            parts += _terms_of(name, entry.terms)
    return _join(parts)


def _terms_of(task: str, found: TermRegistry) -> list[str]:
    """Return the tables of a task's terms."""
    is_push = task == config.DEFAULT_TASK
    presets = list(PRESETS) if is_push else ["weight"]
    rewards = []
    for name, term in found.rewards.items():
        weights: list[float | None] = [term.weight]
        if is_push:
            by_preset = [chosen_weights(REWARDS, PushCfg(rewards=x)) for x in PRESETS]
            weights = [values.get(name) for values in by_preset]
        shown = ["" if not weight else f"{weight:g}" for weight in weights]
        rewards.append((f"`{name}`", term.help, _unit(term), *shown))
    head = (
        "term",
        "meaning",
        "unit",
        *(f"`{preset}`" if is_push else preset for preset in presets),
    )
    parts = [f"## `{task}`", "### Rewards"]
    if is_push:
        parts.append(
            "`task.rewards` names a preset of weights; those shown are the box's. "
            "[The push task](../background/push_task.md) has the formulas."
        )
    parts += [
        table(head, rewards),
        "### Observations",
        _observation_table(found.observations),
        "### State of the critic",
        _observation_table(found.state),
        "### Terminations",
        table(
            ("term", "condition", "is"),
            [
                (f"`{name}`", term.help, "a failure" if term.is_failure else "no failure")
                for name, term in found.terminations.items()
            ],
        ),
    ]
    return parts


def _unit(term: Term) -> str:
    return "" if term.unit == "1" else term.unit


# The entities that a term's numbers are repeated for.
_OVER = {
    None: "",
    "teammates": "each teammate",
    "robots": "each robot",
    "outline": "each point of the outline",
}


def _observation_table(found: Mapping[str, ObservationTerm]) -> str:
    rows = []
    for name, term in found.items():
        numbers = "" if term.numbers is None else _codes(term.numbers)
        over = _OVER[term.over]
        rows.append((f"`{name}`", term.help, _unit(term), numbers, over))
    return table(("term", "meaning", "unit", "numbers", "for"), rows)


def tasks() -> str:
    """Return the page of tasks, algorithms, simulators, clients and checkpoint formats."""
    parts = ["# Tasks, algorithms and simulators", "## Tasks"]
    rows = []
    for name, entry in TASKS.items():
        settings_class = f"`{entry.cfg.__module__}.{entry.cfg.__name__}`"
        rows.append(
            (
                f"`{name}`",
                _first_line(entry.cfg),
                settings_class,
                "" if entry.suite is None else f"`{entry.suite}`",
            )
        )
    parts.append(table(("`--task`", "meaning", "settings", "default suite"), rows))
    parts += [
        "## Algorithms",
        table(
            ("`--algo`", "meaning", "settings"),
            [
                (f"`{name}`", _meaning(entry), f"`{entry.cfg.__module__}.{entry.cfg.__name__}`")
                for name, entry in ALGORITHMS.items()
            ],
        ),
        "## Other registries",
        table(
            ("registry", "names"),
            [
                ("simulators (`--sim`)", _codes(SIMULATORS)),
                ("clients (`mapush.make(task, client=...)`)", _codes(CLIENTS)),
                ("checkpoint formats", _codes(FORMATS)),
                ("trained policies", _codes(f"{PRETRAINED}{name}" for name in pretrained_names())),
            ],
        ),
    ]
    return _join(parts)


def objects() -> str:
    """Return the page of objects."""
    rows = []
    for name, obj in OBJECTS.items():
        shapes = []
        for geom in obj.geoms:
            size = " \u00d7 ".join(f"{number:g}" for number in geom.size)
            shapes.append(f"{geom.type} {size}")
        rows.append(
            (
                f"`{name}`",
                ", ".join(shapes),
                f"{obj.mass:g}",
                f"{obj.friction[0]:g} to {obj.friction[1]:g}",
                f"{obj.spawn_ring[0]:g} to {obj.spawn_ring[1]:g}",
                f"{obj.num_agents}",
            )
        )
    head = ("`--object`", "shape [m]", "mass [kg]", "friction", "robots start at [m]", "robots")
    return _join(
        [
            "# Objects",
            "What teams push. A cylinder's size is its radius and its height. The friction is the "
            "material's own, drawn for each world; two materials meet at the mean of their "
            "coefficients (floor 0.1, robot 1.0). [Own objects](../guides/object.md) adds others.",
            table(head, rows),
        ]
    )


def robots() -> str:
    """Return the page of robots."""
    rows = []
    for name, robot in ROBOTS.items():
        mass = robot.trunk.mass + sum(part.mass for leg in robot.legs for part in leg.inertials)
        rows.append(
            (
                f"`{name}`",
                f"{mass:.1f}",
                " and ".join(f"{length:g}" for length in robot.link_lengths),
                f"{robot.standing_height:g}",
                f"{robot.stiffness:g}, {robot.damping:g}",
                " / ".join(f"{limit:g}" for limit in robot.torque_limit),
                "yes" if robot.physical is not None else "no",
                f"`{robot.gait}`",
            )
        )
    head = (
        "`env.robots`",
        "mass [kg]",
        "thigh and calf [m]",
        "standing height [m]",
        "stiffness [N m/rad], damping [N m s/rad]",
        "torque limit: hip / thigh / calf [N m]",
        "`env.model=physical`",
        "gait",
    )
    return _join(
        [
            "# Robots",
            "The numbers are those of `env.model=reference`. A team may be mixed: "
            "`--set env.robots=[go1,go2]`. [Own robots](../guides/robot.md) adds others.",
            table(head, rows),
        ]
    )


def presets() -> str:
    """Return the page of presets."""
    parts = [
        "# Presets",
        "A preset is a run file that ships with mapush: `mapush train --preset NAME`. A file with "
        "`base` changes that file. Without `--preset` and `--config`, "
        "`mapush train` takes the best preset for the machine, and says which.",
    ]
    for name, path in sorted(config.PRESETS.items()):
        text = path.read_text(encoding="utf-8").rstrip("\n")
        parts += [f"## `{name}`", f"```yaml\n{text}\n```"]
    found = [(f"`{name}`", meaning) for name, meaning in config.suite_summaries().items()]
    parts += [
        "## Suites",
        "A suite fixes robots, object and success, for training and for measuring: "
        "`mapush test CHECKPOINT --suite NAME`.",
        table(("`--suite`", "what it asks of a team"), found),
    ]
    for name in sorted(config.SUITES):
        rows = []
        for condition, changes in config.load_suite(name).conditions.items():
            settings = [f"{key}={_yaml(value)}" for key, value in flatten(changes).items()]
            rows.append((condition, _codes(settings)))
        if rows:
            parts += [f"### Conditions of `{name}`", table(("condition", "settings"), rows)]
    return _join(parts)


def metrics() -> str:
    """Return the page of metrics."""
    parts = [
        "# Metrics",
        "Metrics of episodes are kept on the device for the last 1,000 episodes. A training logs "
        "their means as `mapush/NAME` (of those that are 0 or 1 as `mapush/NAME_rate`), and those "
        "of a robot as `agent<i>/NAME`. [Own metrics](../guides/terms.md) can be added.",
    ]
    for name, entry in TASKS.items():
        if entry.terms is not None:
            rows = [
                (f"`{metric}`", term.help, _unit(term), "yes" if term.per_robot else "")
                for metric, term in entry.terms.metrics.items()
            ]
            parts += [
                f"## `{name}`",
                table(("metric", "meaning", "unit", "for each robot"), rows),
            ]
    parts += [
        "## Output of the calculator",
        "What `mapush test` prints and `--json` writes for the push task:",
        _calculator_keys(),
        "## How a team pushes",
        _definitions(push_watcher.__doc__ or ""),
        _definitions(push_watcher.summarize.__doc__ or ""),
        "[The gait](../background/gait.md#metrics) has the metrics of the examination of gaits.",
    ]
    return _join(parts)


def _calculator_keys() -> str:
    """Return the keys of the calculator's output as Markdown, from their docstring."""
    return _items(
        inspect.cleandoc(episode_report.summarize.__doc__ or "").partition("The keys:")[2]
    )


def _definitions(doc: str) -> str:
    """Return the paragraphs of a docstring after its first line as Markdown."""
    return _items(inspect.cleandoc(doc).partition("\n")[2])


def _items(text: str) -> str:
    """Return text with Markdown's code marks, and each item of its lists in one line."""
    lines: list[str] = []
    for line in text.strip().replace("``", "`").split("\n"):
        is_continued = lines and lines[-1].startswith("- ") and line and not line.startswith("- ")
        if is_continued:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines)


def commands() -> str:
    """Return the page of all commands with their help."""
    parts = ["# Commands", "`mapush` and `python -m mapush` are the same program."]
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        for name, command in COMMANDS.items():
            parts += [
                f"## `mapush {name}`",
                f"{command.help[0].upper()}{command.help[1:]}.",
                f"```text\n{_help(name)}\n```",
            ]
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return _join(parts)


def _help(name: str) -> str:
    """Return what ``mapush NAME --help`` prints."""
    text = StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        load(name)(["--help"])
    return text.getvalue().rstrip("\n")


def _meaning(entry: AlgorithmEntry) -> str:
    """Return the first line about an algorithm, and whether all agents share one actor."""
    text = _first_line(entry.cls) if inspect.isclass(entry.cls) else ""
    is_shared = getattr(entry.cfg(), "share_param", False)
    return f"{text.rstrip('.')}; one actor for all agents." if is_shared else text


def _first_line(thing: Any) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def _yaml(value: Any) -> str:
    """Format a value as in a run file."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_yaml(item) for item in value)}]"
    if hasattr(value, "__dataclass_fields__"):
        return f"{{{', '.join(field.name for field in fields(value))}}}"
    return str(value)


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a bar within a cell is escaped."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    rule = f"|{' --- |' * len(head)}"
    return "\n".join([line(head), rule, *(line(row) for row in rows)])


def _join(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"
