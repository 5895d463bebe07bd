"""Measure shipped teams in suites, for the tables of ``docs/results/teams.md``.

``python benchmarks/results.py`` runs all commands in ``benchmarks/results/suites.jsonl`` again.
With a command, ``mapush test pretrained:any --suite team2``, it runs that one; its row
replaces one with equal suite, object, number of robots and policy, or is new. Scripts in the result
have rows as well. Changes to the suite by ``--set`` belong to the suite. ``--quick`` runs nothing:
it names the rows of other weights or worlds than those that ship, and fails if there are any.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harl_mapush import config, test
from harl_mapush.config.suites import ONE_FEWER
from harl_mapush.evaluation.policies import policy_names
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.extensions import load_extensions
from mqe.registry import TASKS

FILE = Path(__file__).parent / "results" / "suites.jsonl"
ONE_FEWER_FILE = FILE.with_name("one_fewer.jsonl")
DIGITS = 4  # after the point
METRICS = (
    "time_given_success_s",
    "lesser_useful_share",
    "simultaneous_share",
    "touch_share_of_phase",
    "push_ahead_share",
    "push_feet_share",
)
KEY = ("suite", "object", "robots", "policy", "note")
# Settings that a row does not name: how the result was computed, and what its suite implies.
UNNAMED = ("sim.", "task.decision_period", "task.shapes")


def main() -> int:
    """Measure one row, or all rows. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="only look for outdated rows")
    parser.add_argument("--result", type=Path, help="a JSON file that the command has written")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="mapush test ...")
    arguments = parser.parse_args()
    load_extensions()
    if arguments.result and not arguments.command:
        parser.error("--result needs the command that wrote it")
    if arguments.command and arguments.command[:2] != ["mapush", "test"]:
        parser.error("the command must begin with mapush test")
    if arguments.quick:
        outdated = [
            row for file in (FILE, ONE_FEWER_FILE) for row in read(file) if is_outdated(row)
        ]
        for row in outdated:
            where = (row[name] for name in ("suite", "object", "robots", "policy"))
            sys.stdout.write(f"outdated: {' '.join(map(str, where))}\n")
        return 1 if outdated else 0
    rows = read(FILE)
    commands = [arguments.command] if arguments.command else _commands(rows)
    for command in commands:
        result = measured(command, arguments.result)
        for row in rows_of(result, command):
            rows = [other for other in rows if key(other) != key(row)] + [row]
        FILE.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return 0


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows in a file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _commands(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the commands behind the rows, each once."""
    commands = dict.fromkeys(row["command"].partition("; its baselines")[0] for row in rows)
    return [shlex.split(command) for command in commands]


def measured(command: Sequence[str], file: Path | None) -> dict[str, Any]:
    """Return a command's result. Without ``file`` the command runs first."""
    if file is not None:
        return json.loads(file.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        words = [sys.executable, "-m", *command, "--json", str(path)]
        subprocess.run(words, check=True)
        return json.loads(path.read_text(encoding="utf-8"))


def is_outdated(row: Mapping[str, Any]) -> bool:
    """Return whether a row's weights or worlds are not the present ones."""
    return (row["weights"], row["worlds"]) != (weights(row["policy"]), worlds(row["suite"]))


def weights(policy: str) -> str | None:
    """Return a digest of a shipped policy's actors, None for a script."""
    if policy in policy_names():
        return None
    files = sorted(checkpoint.resolve(policy).glob("actor*"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def worlds(suite: str) -> str:
    """Return a digest of a suite's settings."""
    text = json.dumps(config.load_suite(suite).worlds, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a row's unique key: suite, object, robots, policy and note."""
    return tuple(row[name] for name in KEY)


def rows_of(result: Mapping[str, Any], command: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the row for a command's team, and one for each measured script."""
    arguments = test.make_parser().parse(command[2:])
    arguments.suite = arguments.suite or config.suite_of_policy(arguments.team)
    folder = None
    if arguments.team not in policy_names():
        folder = checkpoint.resolve(arguments.team)
    cfg = evaluation_worlds.settings(folder, config.flag_values(arguments))
    suite = arguments.suite or TASKS[cfg.task.name].suite
    note = [text for text in arguments.set or () if not text.startswith(UNNAMED)]
    where = {
        "suite": suite,
        "object": cfg.task.object if cfg.task.shapes is None else f"shapes {cfg.task.shapes}",
        "robots": cfg.env.num_agents,
    }
    yield row_of(result, where, arguments.team, " ".join(note), shlex.join(command))
    for name, metrics in (result.get("baselines") or {}).items():
        row_key = where
        policy = name
        if name == ONE_FEWER:
            row_key = {**where, "robots": where["robots"] - 1}
            policy = arguments.team
        yield row_of(
            metrics, row_key, policy, " ".join(note), f"{shlex.join(command)}; its baselines"
        )


def row_of(
    metrics: Mapping[str, Any], where: Mapping[str, Any], policy: str, note: str, command: str
) -> dict[str, Any]:
    """Return a row with the tables' columns."""
    columns = {name: metrics[name] for name in METRICS if metrics.get(name) is not None}
    return {
        **where,
        "policy": policy,
        "note": note,
        "weights": weights(policy),
        "worlds": worlds(where["suite"]),
        "command": command,
        "num_episodes": metrics["num_episodes"],
        "num_successes": round(metrics["success_rate"] * metrics["num_episodes"]),
        **{name: round(value, DIGITS) for name, value in columns.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
