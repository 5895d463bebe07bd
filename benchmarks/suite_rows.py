"""Write the result of ``mapush test --json`` into the tables of ``docs/results/teams.md``.

``python benchmarks/suite_rows.py RESULT.json mapush test pretrained:any --suite team2`` names the
file and its command. The team's row, and one for each script in the result, goes into
``benchmarks/results/suites.jsonl``. It replaces a row with equal suite, object, number of robots
and policy. Changes to the suite by ``--set`` belong to the suite as well.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harl_mapush import config, test
from harl_mapush.config.suites import ONE_FEWER
from harl_mapush.evaluation.policies import policy_names
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.registry import TASKS

FILE = Path(__file__).parent / "results" / "suites.jsonl"
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
UNNAMED = ("sim.", "task.decision_period", "task.shapes", "task.spawn")


def main() -> int:
    """Add the rows of one result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="mapush test ...")
    arguments = parser.parse_args()
    result = json.loads(arguments.result.read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    for row in rows_of(result, arguments.command):
        rows = [other for other in rows if key(other) != key(row)] + [row]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    FILE.write_text(text, encoding="utf-8")
    return 0


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a row's unique key: suite, object, robots, policy and note."""
    return tuple(row[name] for name in KEY)


def rows_of(result: Mapping[str, Any], command: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the row for a command's team, and one for each measured script."""
    assert list(command[:2]) == ["mapush", "test"], command
    arguments = test.make_parser().parse(command[2:])
    folder = None
    if arguments.team not in policy_names():
        folder = checkpoint.resolve(arguments.team)
    cfg = evaluation_worlds.settings(folder, config.flag_values(arguments))
    default = config.suite_of_policy(arguments.team) or TASKS[cfg.task.name].suite
    suite = arguments.suite or default
    note = [text for text in arguments.set or () if not text.startswith(UNNAMED)]
    where = {
        "suite": suite,
        "object": cfg.task.object if cfg.task.shapes is None else f"shapes {cfg.task.shapes}",
        "robots": cfg.env.num_agents,
    }
    yield row_of(result, where, arguments.team, " ".join(note), " ".join(command))
    for name, metrics in (result.get("baselines") or {}).items():
        row_key = where
        policy = name
        if name == ONE_FEWER:
            row_key = {**where, "robots": where["robots"] - 1}
            policy = arguments.team
        yield row_of(
            metrics, row_key, policy, " ".join(note), f"{' '.join(command)}; its baselines"
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
        "command": command,
        "num_episodes": metrics["num_episodes"],
        "num_successes": round(metrics["success_rate"] * metrics["num_episodes"]),
        **{name: round(value, DIGITS) for name, value in columns.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
