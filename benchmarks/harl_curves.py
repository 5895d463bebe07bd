"""Train the same team twice, by upstream HARL's runners and by ours, and put the curves side by side.

``python benchmarks/harl_curves.py --harl PATH [--algo happo] [--seeds 1 2] [--num_envs 64] [--num_env_steps 400_000]
[--out DIR] [--set SECTION.KEY=VALUE ...]``: upstream trains in this project's environment; then ours reads the
``config.json`` that upstream wrote, with ``--load_config``, so that both have the same settings. One process each, one
after the other. ``DIR/curves.csv`` gets every point; the table shows means over seeds at quarters of the run, and the
seconds each took. ``--set`` is upstream's: ``--set train.episode_length=100``, ``--set task.decision_period=5``.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ALGORITHMS = ("happo", "hatrpo", "haa2c", "mappo")
TAGS = ("reward/total", "mapush/success_rate", "mapush/collision_rate")
NUM_ROWS = 4


class Point(NamedTuple):
    """One value of one curve; ``decisions`` are summed over worlds."""

    side: str
    seed: int
    tag: str
    decisions: int
    value: float


def main() -> int:
    """Train, read the curves, write and show them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--harl", required=True, metavar="PATH", help="a checkout of upstream HARL")
    parser.add_argument("--algo", default="happo", choices=ALGORITHMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--num_envs", default="64")
    parser.add_argument("--num_env_steps", default="400_000", help="decisions summed over worlds")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of torch, on both sides")
    parser.add_argument("--out", type=Path, default=Path("results/harl_curves"))
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    given = parser.parse_args()
    points: list[Point] = []
    seconds: dict[str, list[float]] = {"upstream": [], "ours": []}
    for seed in given.seeds:
        folder = given.out / given.algo / f"seed-{seed}-{time.strftime('%Y-%m-%d-%H-%M-%S')}"
        upstream, took = train_upstream(given, seed, folder)
        points += curves(upstream / "logs", "upstream", seed, 1)
        seconds["upstream"].append(took)
        period, took = train_ours(upstream / "config.json", folder / "ours")
        points += curves(folder / "ours" / "logs", "ours", seed, period)
        seconds["ours"].append(took)
    with (given.out / "curves.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows([Point._fields, *points])
    sys.stdout.write(
        table(points) + "".join(f"{side}: {min(s):.0f} to {max(s):.0f} s\n" for side, s in seconds.items())
    )
    return 0


def train_upstream(given: argparse.Namespace, seed: int, folder: Path) -> tuple[Path, float]:
    """Train by upstream's runner; give its run folder and the seconds it took."""
    settings = ("train.log_interval=1", "eval.use_eval=false", f"device.torch_threads={given.threads}", *given.set)
    command = [
        *("harl_mapush.interop.run_harl", "--harl", given.harl, "--algo", given.algo, "--seed", str(seed)),
        *("--num_envs", given.num_envs, "--num_env_steps", given.num_env_steps.replace("_", ""), "--device", "cpu"),
        *("--out", str(folder / "upstream"), *(word for text in settings for word in ("--set", text))),
    ]
    took = timed(command)
    (config,) = (folder / "upstream").rglob("config.json")
    return config.parent, took


def train_ours(config: Path, folder: Path) -> tuple[int, float]:
    """Train by our runner under upstream's configuration; give control steps a decision and the seconds it took."""
    took = timed(["harl_mapush.train", "--load_config", str(config), "--out", str(folder)])
    lines = (folder / "config.yaml").read_text(encoding="utf-8").splitlines()
    (period,) = (int(line.split(":")[1]) for line in lines if line.strip().startswith("decision_period:"))
    return period, took


def timed(command: list[str]) -> float:
    """Run a module of this project to its end; give the seconds."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    return time.perf_counter() - start


def curves(logs: Path, side: str, seed: int, steps_per_decision: int) -> list[Point]:
    """Read a run's curves."""
    events = EventAccumulator(str(logs), size_guidance={"scalars": 0}).Reload()
    known = [tag for tag in TAGS if tag in events.Tags()["scalars"]]
    return [
        Point(side, seed, tag, scalar.step // steps_per_decision, scalar.value)
        for tag in known
        for scalar in events.Scalars(tag)
    ]


def table(points: list[Point]) -> str:
    """Lay out the means over seeds of each quarter of the run."""
    end = max(point.decisions for point in points)
    rows = [
        f"{'up to decision':>16}"
        + "".join(f"{tag.split('/')[1] + ', ' + side:>26}" for tag in TAGS for side in ("upstream", "ours"))
    ]
    for quarter in range(1, NUM_ROWS + 1):
        low, high = end * (quarter - 1) / NUM_ROWS, end * quarter / NUM_ROWS
        cells = []
        for tag in TAGS:
            for side in ("upstream", "ours"):
                values = [p.value for p in points if (p.side, p.tag) == (side, tag) and low < p.decisions <= high]
                cells.append(f"{sum(values) / len(values):>26.5f}" if values else f"{'-':>26}")
        rows.append(f"{high:>16,.0f}" + "".join(cells))
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
