"""Listings: ``mapush list`` for runs and shipped policies, ``mapush settings`` for all settings."""

import pkgutil
import shutil
import sys
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.callbacks.curves import read_points
from harl_mapush.config.other_names import dotted
from harl_mapush.runs import run_folder
from harl_mapush.runs.checkpoint import all_checkpoints
from mapush.built_in import extensions
from mqe.config import ConfigError, load_yaml, printable, suggestion
from mqe.pretrained import PRETRAINED, summaries
from mqe.registry import TASKS
from mqe.tasks.term_settings import chosen_weights

PRESETS = "presets"  # words in place of a folder
SUITES = "suites"


def make_list_parser() -> config.Parser:
    """Build the command line of ``mapush list``."""
    tables: dict[str, str] = {}
    for extension in extensions():
        tables |= extension.tables
    words = ", ".join((PRESETS, SUITES, *tables))
    parser = config.Parser(
        prog="mapush list",
        description="Runs with their checkpoints, and the policies that ship with mapush; or "
        f"a list of {words}.",
        example="mapush list presets",
    )
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        nargs="?",
        default="results",
        help=f"folder of runs (default: results), or one word of {words}",
    )
    parser.set_defaults(tables=tables)
    return parser


@config.command(make_list_parser)
def main(arguments: Any) -> int:
    """List runs. Return the exit code."""
    tables = arguments.tables
    if arguments.folder == SUITES:
        return _list_words(config.suite_summaries())
    if arguments.folder == PRESETS:
        return _list_words(config.preset_summaries())
    if arguments.folder in tables:
        lines = pkgutil.resolve_name(tables[arguments.folder])()
        sys.stdout.writelines(f"{wrapped(line)}\n" for line in lines)
        return 0
    root = Path(arguments.folder)
    if not root.is_dir() and arguments.folder != "results":
        meant = suggestion(arguments.folder, (PRESETS, SUITES, *tables))
        words = ", ".join((PRESETS, SUITES, *tables))
        hint = f"; name one that holds runs, or one word of {words}"
        raise ConfigError(f"{root} is no folder{meant or hint}")
    runs = sorted(
        path.parent
        for path in root.rglob(run_folder.CHECKPOINTS)
        if (path.parent / run_folder.CONFIG).is_file() or all_checkpoints(path.parent)
    )
    for run in runs:
        sys.stdout.write(f"{wrapped(printable(_run_line(run)))}\n")
    if not runs:
        sys.stdout.write(f"No runs in {root}; mapush list FOLDER looks in another folder.\n")
    sys.stdout.write("\nPolicies that ship with mapush, for instance for mapush play:\n\n")
    return _list_words({f"{PRETRAINED}{name}": words for name, words in summaries().items()})


def _list_words(meanings: Mapping[str, str]) -> int:
    """Print names with their meanings, one a line."""
    width = max(map(len, meanings))
    for name, meaning in meanings.items():
        sys.stdout.write(f"{wrapped(f'{name:{width}}  {meaning}', width + 2)}\n")
    return 0


def _run_line(run: Path) -> str:
    """Format a run as one line."""
    if not (run / run_folder.CONFIG).is_file():
        names = [path.name for _, path in all_checkpoints(run)]
        return f"{run}: without {run_folder.CONFIG}; checkpoints {', '.join(names)}"
    try:
        settings = load_yaml(run / run_folder.CONFIG)
        task, algorithm, runner = (
            settings.get(section) or {} for section in ("task", "algorithm", "runner")
        )
        label = task.get("object") or task.get("name")
        words = f"{label}, {algorithm.get('name')}, seed {runner.get('seed')}"
    except (ConfigError, AttributeError):
        return f"{run}: its {run_folder.CONFIG} is damaged"
    try:
        names = [path.name for _, path in run_folder.checkpoints(run)]
    except PermissionError as error:
        return f"{run}: {words}; {error.filename} cannot be read ({error.strerror})"
    success = "none yet"
    with suppress(ConfigError, KeyError):  # a new run has no curves
        success = f"{read_points(run)['mapush/success_rate'][-1].value:.3f}"
    return f"{run}: {words}; success {success}; checkpoints {', '.join(names) or 'none yet'}"


def make_settings_parser() -> config.Parser:
    """Build the command line of ``mapush settings``."""
    parser = config.Parser(
        prog="mapush settings",
        description="Settings with default, range and meaning.",
        example="mapush settings clip",
    )
    parser.add_argument(
        "pattern",
        metavar="PATTERN",
        nargs="?",
        default="",
        help="text in the lines of the settings to list, such as clip, task. or env.randomize "
        "(default: all settings)",
    )
    config.add_import(parser)
    return parser


@config.command(make_settings_parser)
def settings(arguments: Any) -> int:
    """List settings. Return the exit code."""
    pattern = arguments.pattern
    lines = [line for line in setting_lines() if pattern.lower() in line.lower()]
    if not lines:
        names = [line.split()[0] for line in setting_lines()]
        meant = suggestion(pattern, names)
        raise ConfigError(
            f"no setting's line contains {pattern!r}{meant or '; mapush settings lists them all'}"
        )
    sys.stdout.write("".join(f"{wrapped(line)}\n" for line in lines))
    return 0


def wrapped(line: str, indent: int = 4) -> str:
    """Return a line in the terminal's width, unchanged for a file or pipe."""
    if not sys.stdout.isatty():
        return line
    return textwrap.fill(
        line,
        shutil.get_terminal_size().columns,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def setting_lines() -> list[str]:
    """Return a line for each setting: its name, default, range and help text.

    A setting for particular tasks or algorithms has their names at the line's end.
    """
    variants: list[tuple[str, dict[str, type]]] = [("", dict(config.SECTION_CLASSES))]
    variants += [(name, {"task": entry.cfg}) for name, entry in TASKS.items()]
    variants += [(name, {"algorithm": entry.cfg}) for name, entry in ALGORITHMS.items()]
    owners: dict[str, list[str]] = {}
    for owner, classes in variants:
        for name, field in dotted(classes).items():
            owners.setdefault(_setting_line(name, field), []).append(owner)

    lines = []
    for line, names in owners.items():
        lines.append(line if "" in names else f"{line}  [{', '.join(names)}]")
    return lines + _weight_lines()


def _weight_lines() -> list[str]:
    """Return a line for each reward term, with its weight in the task's default settings."""
    lines = []
    for task, entry in TASKS.items():
        if entry.terms is None:
            continue
        defaults = chosen_weights(entry.terms.rewards, entry.cfg())
        for name, term in entry.terms.rewards.items():
            unit = "" if term.unit == "1" else f" [{term.unit}]"
            weight = defaults.get(name, 0.0)
            lines.append(f"task.weights.{name} = {weight}  {term.help}{unit}  [{task}]")
    return lines


def _setting_line(name: str, field: Any) -> str:
    default = field.default_factory() if field.default is MISSING else field.default
    if default is None:
        default = "null"
    elif isinstance(default, bool):
        default = str(default).lower()
    line = f"{name} = {default}"

    limits = field.metadata
    words = [f"{key} {limits[key]}" for key in ("min", "above", "max") if key in limits]
    if "choices" in limits:
        words.append(" | ".join(str(choice) for choice in limits["choices"]))
    if words:
        line += f"  ({', '.join(words)})"
    if limits.get("help"):
        line += f"  {limits['help']}"
    return line
