"""``mapush list`` lists runs and the policies that ship, ``mapush settings`` lists all settings."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.config import DEFAULT_TASK
from harl_mapush.config.other_names import dotted
from harl_mapush.runs import run_folder
from mapush.report.run_logs import read_run
from mqe.config import ConfigError, load_yaml, unknown
from mqe.pretrained import PRETRAINED, pretrained_names
from mqe.registry import TASKS
from mqe.tasks.push.rewards import REWARDS, weights_of


def main(argv: Sequence[str] | None = None) -> int:
    """List runs as the command line says; return the exit code."""
    return config.exit_code(lambda: _list(argv), "mapush list")


def _list(argv: Sequence[str] | None) -> int:
    parser = config.Parser(
        prog="mapush list",
        description="List runs with their checkpoints, and the policies that ship with mapush.",
    )
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        nargs="?",
        default="results",
        help="to search (default: results)",
    )
    arguments = parser.parse(argv)
    root = Path(arguments.folder)
    if not root.is_dir() and arguments.folder != "results":
        raise ConfigError(f"{root} is no folder; name one that holds runs")
    found = sorted(
        path.parent
        for path in root.rglob(run_folder.CHECKPOINTS)
        if (path.parent / run_folder.CONFIG).is_file()
    )
    for run in found:
        sys.stdout.write(_run_line(run))
    if not found:
        sys.stdout.write(f"No runs in {root}.\n")
    for name in pretrained_names():
        sys.stdout.write(f"{PRETRAINED}{name}\n")
    return 0


def _run_line(run: Path) -> str:
    """Return a line that describes a run."""
    try:
        settings = load_yaml(run / run_folder.CONFIG)
        task, algorithm, runner = (
            settings.get(section) or {} for section in ("task", "algorithm", "runner")
        )
        what = task.get("object") or task.get("name")
        words = f"{what}, {algorithm.get('name')}, seed {runner.get('seed')}"
    except (ConfigError, AttributeError):
        return f"{run}: its {run_folder.CONFIG} is damaged\n"
    names = [path.name for _, path in run_folder.checkpoints(run)]
    success = "none yet"
    try:
        rates = read_run(run).curves.get("mapush/success_rate")
        success = "none yet" if rates is None else f"{rates.values[-1]:.3f}"
    except ConfigError:
        pass  # no curves yet
    return f"{run}: {words}; success {success}; checkpoints {', '.join(names) or 'none yet'}\n"


def settings(argv: Sequence[str] | None = None) -> int:
    """List settings as the command line says; return the exit code."""
    return config.exit_code(lambda: _settings(argv), "mapush settings")


def _settings(argv: Sequence[str] | None) -> int:
    parser = config.Parser(
        prog="mapush settings", description="List settings with default, range and meaning."
    )
    parser.add_argument(
        "pattern",
        metavar="PATTERN",
        nargs="?",
        default="",
        help="only settings whose line contains this",
    )
    config.add_import(parser)
    pattern = parser.parse(argv).pattern
    lines = [line for line in setting_lines() if pattern.lower() in line.lower()]
    if not lines:
        names = [line.split()[0] for line in setting_lines()]
        raise ConfigError(
            f"nothing has it; {unknown('setting', pattern, names).partition(' (allowed')[0]}"
        )
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def setting_lines() -> list[str]:
    """Return a line a setting: its name, default, range and meaning; whose it is, where not all
    tasks have it.
    """
    lines: dict[str, str] = {}
    variants = [config.SECTION_CLASSES]
    variants += [{"task": entry.cfg} for entry in TASKS.values()]
    variants += [{"algorithm": entry.cfg} for entry in ALGORITHMS.values()]
    owners = ["", *TASKS, *ALGORITHMS]
    for classes, owner in zip(variants, owners, strict=True):
        for name, field in dotted(classes).items():
            line = _setting_line(name, field)
            key = f"{name} {line}"
            if key in lines:
                lines[key] = f"{lines[key]}, {owner}"
            else:
                lines[key] = f"{line}{f'  [{owner}' if owner else ''}"
    listed = [line + ("]" if "  [" in line else "") for line in lines.values()]
    return listed + _weight_lines()


def _weight_lines() -> list[str]:
    """Return a line a term of ``task.weights`` of the push task; defaults are those of its rewards
    for the box.
    """
    defaults = weights_of("default", "cuboid", {})
    return [
        f"task.weights.{name} = {defaults.get(name, 0.0)}  {term.help}  [{DEFAULT_TASK}]"
        for name, term in REWARDS.items()
    ]


def _setting_line(name: str, field: Any) -> str:
    if field.default is not MISSING:
        default = field.default
    else:
        if field.default_factory is not MISSING:
            default = field.default_factory()
        else:
            default = "must be given"
    limits = field.metadata
    words = [f"{key} {limits[key]}" for key in ("min", "above", "max") if key in limits]
    if "choices" in limits:
        words.append(" | ".join(str(choice) for choice in limits["choices"]))
    shown = (
        "null"
        if default is None
        else str(default).lower()
        if isinstance(default, bool)
        else default
    )
    meaning = limits.get("help", "")
    return (
        f"{name} = {shown}"
        + (f"  ({', '.join(words)})" if words else "")
        + (f"  {meaning}" if meaning else "")
    )
