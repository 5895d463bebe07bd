"""Measure everything that README and ``docs/results/`` state and a CPU can measure.

``python benchmarks/results.py`` runs the commands of ``benchmarks/stated.py`` whose rows in
``benchmarks/results/rows.jsonl`` are missing, outdated or of too few episodes, and writes each row
as soon as it is there. A second call goes on after the last row. ``--again`` measures fresh rows as
well, ``--match`` some rows only, ``--episodes`` fewer episodes. ``--plan`` only states the number
of rows and the time. ``--quick`` runs nothing: it names missing rows, and fails if a row has other
weights or worlds than those that ship. Rows without ``seconds`` are of
former programs, and have the digests of the files that shipped when they came into the file. A row
with a ``command`` had another one than its columns now have in ``benchmarks/stated.py``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from stated import EPISODES, LARGE_TEAMS, MINUTE, SHIPPED_GAITS, Measurement, measurements

import mqe
from harl_mapush import config
from harl_mapush.runs import checkpoint
from mqe.config import load_yaml
from mqe.extensions import load_extensions
from mqe.pretrained import PRETRAINED
from mqe.tasks.entry import EnvCfg

FOLDER = Path(__file__).resolve().parent
FILE = FOLDER / "results" / "rows.jsonl"
ASSETS = Path(mqe.__file__).parent / "assets"
LIBRARY = ("mqe", "harl_mapush", "mapush", "configs")
DIGITS = 5  # after the point
METRICS = (
    "time_given_success_s",
    "num_spawned",
    "lesser_useful_share",
    "simultaneous_share",
    "touch_share_of_phase",
    "push_ahead_share",
    "spl",
    "object_contact_share",
    "robot_contact_share",
)
KEY = ("suite", "object", "robots", "policy", "condition", "note")
CPU = ("sim.name=mujoco", "sim.device=cpu", "sim.num_threads=1")  # results do not depend on them

Row = dict[str, Any]


def main() -> int:
    """Measure, or only check, the rows. Return the exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="only look for outdated rows")
    parser.add_argument("--plan", action="store_true", help="only state rows and time")
    parser.add_argument("--again", action="store_true", help="measure fresh rows as well")
    parser.add_argument("--match", nargs="+", default=[""], help="parts of the commands to run")
    parser.add_argument("--episodes", type=int, help="at most so many for each row")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    load_extensions()
    plan = {measurement.key: measurement for measurement in measurements()}
    rows = {key(row): row for row in read(FILE)}
    if arguments.quick:
        outdated = [name for name in rows if name not in plan or is_outdated(rows[name])]
        for name in outdated:
            sys.stdout.write(f"outdated: {' '.join(name)}\n")
        for name in plan.keys() - rows.keys():  # no table states them yet
            sys.stdout.write(f"missing: {' '.join(name)}\n")
        return 1 if outdated else 0

    rows = {name: rows[name] for name in plan if name in rows}
    jobs = []
    for name, measurement in plan.items():
        episodes = min(arguments.episodes or measurement.episodes, measurement.episodes)
        measurement = replace(measurement, episodes=episodes)
        is_due = arguments.again or name not in rows or is_short(rows[name], episodes)
        if is_due and any(part in measurement.command() for part in arguments.match):
            jobs.append(measurement)
    jobs.sort(key=lambda job: (MINUTE not in job.note, job.suite not in LARGE_TEAMS))
    jobs.sort(key=lambda job: job.key in rows and not is_outdated(rows[job.key]))
    costs = [expected_seconds(job, rows) for job in jobs]
    num_failed = 0
    sys.stdout.write(f"{len(jobs)} of {len(plan)} rows, {minutes(costs, arguments.processes)}\n")
    if arguments.plan:
        return 0
    write([*rows.values()])
    with ThreadPool(arguments.processes) as pool:
        for row in pool.imap_unordered(measured, jobs):
            if row is None:
                num_failed += 1
                continue
            rows = {key(other): other for other in read(FILE)} | {key(row): row}
            write([*rows.values()])
            sys.stdout.write(f"{row['seconds']:6.0f} s  {' '.join(key(row))}\n")
            sys.stdout.flush()
    return 1 if num_failed else 0


def read(file: Path) -> list[Row]:
    """Return the rows in a file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write(rows: Sequence[Row]) -> None:
    """Replace the file of rows."""
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    new_file = FILE.with_suffix(".new")
    new_file.write_text(text, encoding="utf-8")
    new_file.replace(FILE)


def key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns that tell a row from the others."""
    return tuple(str(row[name]) for name in KEY)


def is_short(row: Row, episodes: int) -> bool:
    """Return whether a row is outdated or has fewer episodes than are asked for."""
    return is_outdated(row) or (row["num_episodes"] or episodes) < episodes


def is_outdated(row: Row) -> bool:
    """Return whether a row's weights or worlds are not the present ones."""
    return (row["weights"], row["worlds"]) != (weights(row), worlds(row))


def weights(row: Mapping[str, Any]) -> str | None:
    """Return a digest of the shipped actors behind a row, None without any."""
    team = row["note"].removeprefix("task.team=")
    if team == row["note"]:
        team = _suite(row["suite"]).worlds.get("task", {}).get("team", "")
    names = [name for name in (row["policy"], team) if name.startswith(PRETRAINED)]
    return "-".join(map(actor_digest, names)) or None


@cache
def actor_digest(policy: str) -> str:
    """Return a digest of a shipped policy's actors."""
    files = sorted(checkpoint.resolve(policy).glob("actor*"))
    return digest(b"".join(file.read_bytes() for file in files))


def worlds(row: Mapping[str, Any]) -> str:
    """Return a digest of a row's worlds: its suite's settings, its object and its robots' gaits."""
    suite = _suite(row["suite"])
    parts = [suite.worlds, suite.conditions.get(row["condition"]), _form(row["object"])]
    ending = "push" if model(row) == "physical" else "velocity"
    names = [name for name in SHIPPED_GAITS if name.endswith(ending)]
    gaits = [actor_digest(f"{PRETRAINED}{name}") for name in names]
    return digest(json.dumps([*parts, gaits], sort_keys=True).encode())


def model(row: Mapping[str, Any]) -> str:
    """Return the robots' description in a row's worlds: the suite's, or the policy's own."""
    settings = _suite(row["suite"]).worlds.get("env", {})
    policies = [row["policy"], row["note"].removeprefix("task.team=")]
    for policy in policies:
        if policy.startswith(PRETRAINED):
            settings = checkpoint.read_config(checkpoint.resolve(policy))["env"] | settings
    return settings.get("model", EnvCfg.model)


@cache
def _suite(name: str) -> config.Suite:
    return config.load_suite(name)


@cache
def _form(name: str) -> Any:
    """Return the parts and the friction of an object, or the digest of the held-out shapes."""
    if "held_out" in name:
        return digest((ASSETS / "shapes" / "held_out.json").read_bytes())
    form = load_yaml(ASSETS / "objects.yaml").get(name, {})
    return [form.get("geoms"), form.get("friction")]


@cache
def commit() -> str:
    """Return the last commit of the library, with ``-dirty`` after changes to it."""
    git = ["git", "-C", str(FOLDER.parent)]
    log = [*git, "log", "-1", "--format=%h", "--", *LIBRARY]
    name = subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip()
    is_dirty = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *LIBRARY], check=False)
    return f"{name}-dirty" if is_dirty.returncode else name


def digest(content: bytes) -> str:
    """Return twelve digits of a digest."""
    return hashlib.sha256(content).hexdigest()[:12]


def expected_seconds(job: Measurement, rows: Mapping[tuple[str, ...], Row]) -> float:
    """Return the processor time that a measurement will take, from the rows that have one."""
    times = {
        name: row["seconds"] / (row["num_episodes"] or EPISODES)
        for name, row in rows.items()
        if row["seconds"]
    }
    mean = statistics.mean(times.values()) if times else 1.0
    return job.episodes * times.get(job.key, mean)


def minutes(costs: Sequence[float], processes: int) -> str:
    """Format the time that measurements take: at least that of the longest one."""
    wall_clock = max([sum(costs) / processes, *costs], default=0.0)
    return f"about {wall_clock / 60:.0f} minutes of {processes} processors"


def measured(job: Measurement) -> Row | None:
    """Run a measurement in a process of its own and return its row, None after a failure."""
    settings = [word for setting in CPU for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        words = [*shlex.split(job.command())[1:], *settings, "--json", str(result)]
        process = subprocess.Popen(
            [sys.executable, "-m", "mapush", *words],
            cwd=FOLDER,
            stdout=subprocess.DEVNULL,
            env={"PYTHONPATH": str(FOLDER.parent), **os.environ, "OMP_NUM_THREADS": "1"},
        )
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.stdout.write(f"failed: {job.command()}\n")
            return None
        metrics = json.loads(result.read_text(encoding="utf-8"))
    row = row_of(metrics[0] if job.condition else metrics, job)
    return row | {"seconds": round(usage.ru_utime + usage.ru_stime, 1)}


def row_of(metrics: Mapping[str, Any], job: Measurement) -> Row:
    """Return a row with the tables' columns."""
    row: Row = {name: getattr(job, name) for name in KEY}
    row |= {"weights": weights(row), "worlds": worlds(row)}
    row |= {"commit": commit()}
    if job.suite == "gait":
        return row | {"num_episodes": None, "metrics": rounded(metrics)}
    row |= {"num_episodes": metrics["num_episodes"]}
    row |= {"num_successes": round(metrics["success_rate"] * metrics["num_episodes"])}
    return row | rounded({name: metrics[name] for name in METRICS if metrics.get(name) is not None})


def rounded(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with fewer digits."""
    return {
        name: round(value, DIGITS) if isinstance(value, float) else value
        for name, value in metrics.items()
    }


if __name__ == "__main__":
    sys.exit(main())
