"""Train every algorithm with several seeds on the push task, measure each team, and draw the
curves.

``python benchmarks/algorithms.py --out DIR [--algo happo ...] [--seeds 1 2 3] [--preset h100]
[--num_env_steps N] [--jobs J] [--set section.key=value]``; ``--draw FILE.svg`` draws what
``DIR/algorithms.jsonl`` has by then.

A run that is in the file is not run again, so a call that was cut off goes on. ``--jobs`` runs that
many at a time. Curves begin when the time limit has passed once.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.runs.run_folder import curves_folder

RESULTS = "algorithms.jsonl"
CURVE_TAG = "mapush/success_rate"


def main() -> int:
    """Run what is missing; print one JSON line a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--algo", nargs="+", choices=sorted(ALGORITHMS), default=sorted(ALGORITHMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--preset", default="h100")
    parser.add_argument("--num_env_steps", type=int, default=30_000_000)
    parser.add_argument("--num_episodes", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--draw", type=Path, metavar="FILE.svg")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    there = {(row["algo"], row["seed"]) for row in read(arguments.out)}
    missing = [
        (algo, seed)
        for seed in arguments.seeds
        for algo in arguments.algo
        if (algo, seed) not in there
    ]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(lambda run: train(arguments, *run), missing):
            line = json.dumps(row)
            with (arguments.out / RESULTS).open("a") as file:
                file.write(line + "\n")
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    if arguments.draw is not None:
        draw(read(arguments.out), arguments.draw)
    return 0


def train(arguments: argparse.Namespace, algo: str, seed: int) -> dict[str, Any]:
    """Train one team and measure it; a failure of either ends the program with its own message."""
    run = arguments.out / f"{algo}-{seed}"
    shutil.rmtree(run, ignore_errors=True)  # of a call that was cut off
    settings = [word for text in arguments.set for word in ("--set", text)]
    command = [
        sys.executable,
        "-m",
        "harl_mapush.train",
        "--preset",
        arguments.preset,
        "--algo",
        algo,
    ]
    command += [
        "--seed",
        str(seed),
        "--num_env_steps",
        str(arguments.num_env_steps),
        "--out",
        str(run),
        *settings,
    ]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall_s = time.perf_counter() - start
    figures = run / "figures.json"
    command = [
        sys.executable,
        "-m",
        "harl_mapush.test",
        "--checkpoint",
        str(run),
        "--mode",
        "calculator",
    ]
    command += ["--num_envs", str(arguments.num_episodes), "--json", str(figures)]
    command += ["--baselines", "0"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    curve = [(point.step, point.value) for point in scalars(curves_folder(run), CURVE_TAG)]
    written = json.loads(figures.read_text())
    return {
        "algo": algo,
        "seed": seed,
        "preset": arguments.preset,
        "wall_s": wall_s,
        "curve": curve,
    } | written


def scalars(logs: Path, tag: str) -> list[Any]:
    """Return the points of one curve."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(logs), size_guidance={"scalars": 0})
    events.Reload()
    return events.Scalars(tag)


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the runs that are done."""
    path = folder / RESULTS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def draw(rows: list[dict[str, Any]], picture: Path) -> None:
    """Draw one line a seed, one colour an algorithm; beside it what the calculator says of the
    teams.
    """
    from matplotlib import pyplot  # only pictures need it: pip install matplotlib

    by_algo: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_algo[row["algo"]].append(row)
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(8.6, 3.8), layout="constrained", sharey=True
    )
    for number, (algo, runs) in enumerate(sorted(by_algo.items())):
        color = f"C{number}"
        for k, row in enumerate(runs):
            steps, rates = zip(*row["curve"], strict=True)
            left.plot(
                [s / 1e6 for s in steps],
                rates,
                color=color,
                label=algo if k == 0 else None,
                alpha=0.8,
            )
        right.scatter([algo] * len(runs), [row["success_rate"] for row in runs], color=color)
    left.set(
        title="while training, last 1,000 episodes",
        xlabel="M env steps",
        ylabel="success rate",
        ylim=(0, 1),
    )
    right.set(title="calculator, one point a seed")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend()
    figure.savefig(picture)


if __name__ == "__main__":
    sys.exit(main())
