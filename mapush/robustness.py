"""Measure teams in worlds that differ from the usual ones: ``mapush robustness CHECKPOINT``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.evaluation.drawing import draw_conditions
from harl_mapush.evaluation.episodes import Request, add_request_flags, check_request
from harl_mapush.evaluation.measuring import as_csv, headline, measure_all, with_interval
from harl_mapush.figures import check_figure
from harl_mapush.process import library_lines
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.config import ConfigError, flatten, merge, nested, unknown
from mqe.registry import TASKS

PROGRAM = "mapush robustness"
NUM_EPISODES = 300  # of each seed
DIGITS = 5  # significant digits in JSON lines


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="Metrics of teams in worlds that differ from the usual ones.",
        example='mapush robustness pretrained:cuboid --only separated "mass x3"',
    )
    parser.add_argument(
        "checkpoints",
        metavar="CHECKPOINT",
        nargs="+",
        help="checkpoint folders, run folders or pretrained:NAME",
    )
    parser.add_argument(
        "--num_episodes",
        metavar="N",
        type=int,
        default=NUM_EPISODES,
        help=f"episodes of each seed (default: {NUM_EPISODES})",
    )
    add_request_flags(parser)
    parser.set_defaults(seeds=[0])
    parser.add_argument(
        "--only", metavar="CONDITION", nargs="+", help="names of conditions (default: all)"
    )
    parser.add_argument("--json", metavar="FILE", help="file for a JSON line for each condition")
    parser.add_argument("--csv", metavar="FILE.csv", help="file for a row for each condition")
    parser.add_argument(
        "--figure",
        metavar="FILE",
        help="file for a plot of success under each condition (.png, .svg or .pdf)",
    )
    config.add_import(parser)
    config.add_flags(parser, ("--num_envs", "--device", "--sim"))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure teams as the command line says; return the exit code."""
    with library_lines(_say):
        return config.exit_code(lambda: _main(make_parser().parse(argv)), PROGRAM)


def _main(arguments: Any) -> int:
    check_request(arguments.seeds, arguments.num_episodes, arguments.workers)
    if arguments.figure is not None:
        check_figure(arguments.figure)
    for flag in ("json", "csv", "figure"):
        config.check_writable(flag, getattr(arguments, flag))
    suite = {} if arguments.suite is None else config.load_suite(arguments.suite)
    over = config.flag_values(argparse.Namespace(**{**vars(arguments), "suite": None}))
    if "seed" in (over.get("runner") or {}):
        raise ConfigError(
            "runner.seed and --seeds exclude each other; use --seeds alone for the episodes' seeds"
        )

    # All teams are checked before the first is measured.
    teams = [(name, checkpoint.resolve(name)) for name in arguments.checkpoints]
    tables = [_conditions(folder, arguments.only, suite) for _, folder in teams]
    for conditions in tables:
        _check_settings(over, conditions)

    rows: list[dict[str, Any]] = []
    metric = ""
    for (team, folder), conditions in zip(teams, tables, strict=True):
        requests = [
            _request(folder, merge(over, content), arguments) for content in conditions.values()
        ]
        metric = headline(requests[0].cfg)
        num_episodes = arguments.num_episodes * len(arguments.seeds)
        _say(f"{team}: {metric}, n = {num_episodes} per condition, 95 % intervals")
        measured = measure_all(requests, arguments.workers or 0, _say)
        perfect: dict[str, list[str]] = {}
        for condition, metrics in zip(conditions, measured, strict=True):
            result = with_interval(metrics, metric)
            if metrics[metric] == 1.0:
                perfect.setdefault(result, []).append(condition)
            else:
                _say(f"  {condition:<32}{result}")
            rows.append(_row(team, condition, arguments.seeds, metrics))
            if arguments.json is not None:
                lines = [json.dumps(row, allow_nan=False) + "\n" for row in rows]
                Path(arguments.json).write_text("".join(lines), encoding="utf-8")
        for result, names in perfect.items():
            title = names[0] if len(names) == 1 else f"{len(names)} conditions"
            rest = "" if len(names) == 1 else f": {', '.join(names)}"
            _say(f"  {title:<32}{result}{rest}")

    if arguments.csv is not None:
        Path(arguments.csv).write_text(as_csv(rows), encoding="utf-8")
    if arguments.figure is not None:
        draw_conditions(rows, metric, Path(arguments.figure))
    return 0


def _conditions(
    folder: Path, only: Sequence[str] | None, suite: Mapping[str, Any]
) -> Mapping[str, Mapping[str, Any]]:
    """Return the conditions of a checkpoint's task by name in the worlds of ``suite``, restricted
    to ``only`` if given.
    """
    task = config.resolve(checkpoint.read_config(folder), {})[0].task.name
    known = TASKS[task].conditions
    if not known:
        raise ConfigError(
            f"checkpoint {folder}: its task {task} defines no conditions for mapush robustness"
        )
    for name in only or ():
        if name not in known:
            raise ConfigError(f"--only: {unknown('condition', name, known)}")
    usual = flatten(next(iter(known.values())))
    return {name: _in_suite(known[name], usual, suite) for name in only or known}


def _in_suite(
    condition: Mapping[str, Any], usual: Mapping[str, Any], suite: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a condition in the worlds of a suite: what it changes of the ``usual`` leaves stays,
    all else is as the suite says.
    """
    found = merge(condition, suite)
    for key, value in flatten(condition).items():
        if key not in usual or usual[key] != value:
            found = merge(found, nested(key, value))
    return found


def _check_settings(over: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ConfigError for a setting of the command line that a condition changes."""
    for name, content in conditions.items():
        before = flatten(over)
        after = flatten(merge(over, content))
        for key in before:
            if before[key] != after[key]:
                raise ConfigError(
                    f"{key}={before[key]}: condition {name!r} sets {after[key]}; leave it out"
                )


def _request(folder: Path, over: Mapping[str, Any], arguments: Any) -> Request:
    cfg = evaluation_worlds.settings(folder, over)
    num_envs = None if arguments.num_envs is None else cfg.env.num_envs
    return Request(cfg, tuple(arguments.seeds), arguments.num_episodes, folder, num_envs=num_envs)


def _row(
    team: str, condition: str, seeds: Sequence[int], metrics: Mapping[str, Any]
) -> dict[str, Any]:
    shares = [value for key, value in metrics.items() if key.startswith("contact_share_agent")]
    pooled = {key: _short(value) for key, value in metrics.items() if key != "per_seed"}
    row = {
        "part": "robustness",
        "checkpoint": team,
        "condition": condition,
        "seeds": list(seeds),
        **pooled,
    }
    if shares:
        row["contact_shares"] = _short(shares)
    return row


def _short(value: Any) -> Any:
    """Round a number, or each of a list, to ``DIGITS`` significant digits."""
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
