"""The calculator of ``mapush test``: measures a policy, and prints or writes its metrics."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.config import RunCfg, Suite
from harl_mapush.evaluation.episodes import MOST_EPISODES
from harl_mapush.evaluation.measuring import describe, measure
from harl_mapush.evaluation.policies import find_function, policy_names
from harl_mapush.evaluation.suite_player import EXAMINATIONS, Player
from harl_mapush.process import say
from harl_mapush.runs import evaluation_worlds, run_folder
from mqe.config import ConfigError, flatten, merge
from mqe.registry import resolve_sim
from mqe.tasks.episode_report import describe_metrics, format_metric

# Flags of the calculator alone
FLAGS = ("json", "csv", "seeds", "all_checkpoints", "team_only", "only")


def add_flags(parser: config.Parser) -> None:
    """Add the flags of ``mapush test --mode calculator``."""
    group = parser.add_argument_group("calculator")
    group.add_argument(
        "--seeds",
        metavar="SEED",
        type=int,
        nargs="+",
        help="seeds of the pooled episodes (default: the suite's, or 0)",
    )
    group.add_argument(
        "--team_only",
        action="store_const",
        const=True,
        help="measure the team alone, without the suite's comparison policies",
    )
    group.add_argument(
        "--only",
        metavar="CONDITION",
        nargs="+",
        help="names of the suite's conditions to measure (default: all)",
    )
    group.add_argument(
        "--all_checkpoints",
        action="store_const",
        const=True,
        help="metrics of every checkpoint of the run",
    )
    group.add_argument("--json", metavar="FILE", help="file for the calculator's metrics")
    group.add_argument(
        "--csv",
        metavar="FILE.csv",
        help="with --all_checkpoints or a suite of conditions: file for a table of the metrics",
    )


def check_flags(arguments: Any) -> None:
    """Raise ConfigError for flags out of range or in contradiction."""
    seeds = arguments.seeds or []
    if seeds and "seed" in (config.flag_values(arguments).get("runner") or {}):
        raise ConfigError("--seed (runner.seed) and --seeds exclude each other; use --seeds alone")
    number = arguments.num_episodes
    if number is not None and number > MOST_EPISODES:
        raise ConfigError(f"--num_episodes {number}: must be at most {MOST_EPISODES}")
    if len(set(seeds)) < len(seeds) or any(not 0 <= seed < 2**62 for seed in seeds):
        raise ConfigError(
            f"--seeds {' '.join(map(str, seeds))}: must be different whole numbers from 0 on"
        )
    if arguments.policy is not None:
        if arguments.all_checkpoints:
            raise ConfigError(
                "--policy and --all_checkpoints exclude each other: a function has no checkpoints"
            )
        if arguments.policy not in policy_names():
            find_function(arguments.policy)


def find_suite(cfg: RunCfg, arguments: Any) -> Suite:
    """Return the suite to play. Raise ConfigError for flags without an effect in this suite."""
    suite = config.measured_suite(cfg.task.name, arguments.suite)
    if suite.examination is not None:
        _check_examination(suite, arguments)
        return suite
    has_conditions = bool(suite.conditions)
    if has_conditions and arguments.all_checkpoints:
        raise ConfigError(
            f"--all_checkpoints: suite {suite.name} has conditions; measure one checkpoint, or "
            "name another suite"
        )
    if arguments.only and not has_conditions:
        raise ConfigError("--only: the suite has no conditions; name one, as --suite robustness")
    if arguments.csv is not None and not (has_conditions or arguments.all_checkpoints):
        raise ConfigError("--csv shows the checkpoints of a run; add --all_checkpoints")
    return suite


def _check_examination(suite: Suite, arguments: Any) -> None:
    """Raise ConfigError for flags and settings without a meaning in an examination."""
    assert suite.examination is not None
    examination = EXAMINATIONS.find(suite.examination, f"suite {suite.name}: examination")
    own_worlds = f"the examination {suite.examination!r} has worlds of its own"
    for flag in (*FLAGS, "num_episodes", "num_envs"):
        if flag != "json" and getattr(arguments, flag) is not None:
            raise ConfigError(f"--{flag}: has no effect, because {own_worlds}; leave it out")
    for key in flatten(config.flag_values(arguments)):
        if key.startswith(("task.", "env.")) and key not in examination.settings:
            raise ConfigError(
                f"{key}: {own_worlds}; leave it out, or film the policy (--mode viewer)"
            )


def calculate(cfg: RunCfg, suite: Suite, folder: Path | None, arguments: Any) -> int:
    """Measure a team in a suite and return the exit code.

    ``folder`` is the checkpoint's. None: the command line names a policy without training.
    """
    if suite.examination is not None and folder is not None:
        examination = EXAMINATIONS[suite.examination]
        metrics = examination.measure(cfg, folder, resolve_sim(cfg.sim)[1], say)
        sys.stdout.write(describe_metrics(metrics))
        _write_json(arguments.json, metrics)
        return 0

    if suite.examination is None:
        sys.stdout.write(evaluation_worlds.in_words(cfg, suite.name))
        if folder is not None:
            sys.stdout.write(evaluation_worlds.differences(folder, cfg))
    player = _player(cfg, suite, folder, arguments)
    if suite.conditions:
        _write_rows(player.conditions(arguments.only), arguments)
        return 0
    if arguments.all_checkpoints:
        run = None if folder is None else run_folder.run_of(folder)
        if run is None:
            raise ConfigError(
                f"--all_checkpoints: {arguments.team} is not in a run folder; name a run folder"
            )
        _write_rows(player.checkpoints(run), arguments)
        return 0

    request = player.request()
    metrics = measure(request)
    sys.stdout.write(describe(request, metrics))
    _write_json(arguments.json, metrics)
    compared = {} if arguments.team_only else player.compare(request)
    if compared:
        _write_json(arguments.json, {**metrics, "baselines": compared})
    return 0


def _player(cfg: RunCfg, suite: Suite, folder: Path | None, arguments: Any) -> Player:
    """Return the suite's player with the episodes and seeds of the command line."""
    flags = config.flag_values(argparse.Namespace(**{**vars(arguments), "suite": None}))
    num_episodes = arguments.num_episodes or suite.episodes
    has_worlds = "num_envs" in (flags.get("env") or {})
    if has_worlds and arguments.num_episodes is None:
        num_episodes = cfg.env.num_envs
    seeds = suite.seeds
    if "seed" in (flags.get("runner") or {}):
        seeds = (cfg.runner.seed,)
    if not has_worlds:  # all at once
        worlds = num_episodes * len(arguments.seeds or seeds)
        flags = merge(flags, {"env": {"num_envs": worlds}})
    return Player(
        suite, flags, folder, arguments.policy, tuple(arguments.seeds or seeds), num_episodes
    )


def _write_rows(rows: Iterable[Mapping[str, Any]], arguments: Any) -> None:
    """Write rows of metrics to the command line's output files."""
    written: list[Mapping[str, Any]] = []
    for row in rows:
        written.append(row)
        # A measurement that is stopped keeps its rows.
        _write_json(arguments.json, written)
        if arguments.csv is not None:
            Path(arguments.csv).write_text(as_csv(written), encoding="utf-8")


def _write_json(name: str | None, values: Any) -> None:
    if name is not None:
        text = json.dumps(values, indent=2, allow_nan=False)
        Path(name).write_text(text + "\n", encoding="utf-8")


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of metrics as CSV, with two columns for an interval and without ``per_seed``."""
    flat = []
    for row in rows:
        cells: dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, list) and len(value) == 2:
                cells[f"{name}_low"] = value[0]
                cells[f"{name}_high"] = value[1]
            elif isinstance(value, list):
                cells[name] = format_metric(value)
            elif not isinstance(value, dict):
                cells[name] = value
        flat.append(cells)

    text = io.StringIO()
    columns = list(dict.fromkeys(name for cells in flat for name in cells))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()
