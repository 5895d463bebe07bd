"""Write a leaderboard's entry from the result of ``mapush test --json``.

``python benchmarks/leaderboard.py RESULT.json ENTRY.json mapush test RUN --suite team2`` names the
result, the entry and the command of the result. ``docs/guides/compare.md`` explains the entry.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harl_mapush import config, test
from harl_mapush.evaluation.policies import policy_names
from harl_mapush.runs import checkpoint, evaluation_worlds
from mapush import __version__
from mqe.extensions import load_extensions
from mqe.manifest import git_revision
from mqe.registry import TASKS
from mqe.tasks.episode_report import wilson_interval

FORMAT_VERSION = 1
LEAST_EPISODES = 300
# Settings that an entry does not name: how a result was computed
UNNAMED = ("sim.", "task.decision_period")


def main() -> int:
    """Write one entry. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("entry", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="mapush test ...")
    arguments = parser.parse_args()
    load_extensions()
    result = json.loads(arguments.result.read_text(encoding="utf-8"))
    if result["num_episodes"] < LEAST_EPISODES:
        parser.error(f"{arguments.result}: has fewer than {LEAST_EPISODES} episodes")
    text = json.dumps(entry_of(result, arguments.command), indent=2)
    arguments.entry.write_text(text + "\n", encoding="utf-8")
    return 0


def entry_of(result: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """Return the entry of a result: its worlds, its rate with the interval, and its origin."""
    arguments = test.make_parser().parse(command[2:])
    suite = arguments.suite or config.suite_of_policy(arguments.team)
    folder = None
    if arguments.team not in policy_names():
        folder = checkpoint.resolve(arguments.team)
    cfg = evaluation_worlds.settings(folder, config.flag_values(arguments))
    contents = evaluation_worlds.contents(cfg)
    settings = [text for text in arguments.set or () if not text.startswith(UNNAMED)]
    counts = (round(result["success_rate"] * result["num_episodes"]), result["num_episodes"])
    return {
        "format_version": FORMAT_VERSION,
        "policy": arguments.team,
        "suite": suite or TASKS[cfg.task.name].suite,
        "object": contents.get("object"),
        "robots": contents["num_robots"],
        "changed_settings": " ".join(settings),
        "object_mass_kg": result["object_mass_kg"],
        "sliding_force_n": rounded(result["sliding_force_n"]),
        "num_successes": counts[0],
        "num_episodes": counts[1],
        "success_interval": [round(bound, 4) for bound in wilson_interval(*counts)],
        "seeds": [int(seed) for seed in result.get("per_seed", {})],
        "command": shlex.join(command),
        "mapush": __version__,
        "revision": git_revision(),
    }


def rounded(force: float | Sequence[float]) -> float | list[float]:
    """Return a force [N], or the least and the largest force, with two decimals."""
    if isinstance(force, Sequence):
        return [round(bound, 2) for bound in force]
    return round(force, 2)


if __name__ == "__main__":
    sys.exit(main())
