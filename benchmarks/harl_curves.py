"""Train the same team twice, by upstream HARL's runners and by ours, and put the curves side by
side.

``python benchmarks/harl_curves.py --harl PATH [--algo happo] [--seeds 1 2] [--num_envs 64]
[--num_env_steps 400_000]
[--out DIR] [--set SECTION.KEY=VALUE ...]``: upstream trains in this project's environment; then
ours reads the
``config.json`` that upstream wrote, with ``--load_config``, so that both have the same settings.
One process each, one
after the other. ``DIR/curves.csv`` gets means over fortieths of the run, a column a side and seed;
``DIR/curves.svg``
draws the success rate; the table shows means over seeds at eighths, and the seconds each took.
``--set`` is upstream's:
``--set train.episode_length=100``, ``--set task.decision_period=5``.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mqe.cores import num_cores

ALGORITHMS = ("happo", "hatrpo", "haa2c", "mappo")
TAGS = ("reward/total", "mapush/success_rate", "mapush/collision_rate")
SIDES = ("upstream", "ours")
NUM_ROWS = 8  # of the table
NUM_MEANS = 40  # in the file, along a curve


class Point(NamedTuple):
    """One value of one curve; ``decisions`` are summed over worlds."""

    side: str
    seed: int
    tag: str
    decisions: int
    value: float


def main() -> int:
    """Train, read the curves, write and show them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--harl", required=True, metavar="PATH", help="a checkout of upstream HARL")
    parser.add_argument("--algo", default="happo", choices=ALGORITHMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--num_envs", default="64")
    parser.add_argument("--num_env_steps", default="400_000", help="decisions summed over worlds")
    parser.add_argument("--threads", type=int, default=num_cores(), help="of torch, on both sides")
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
        points += curves(folder / "ours", "ours", seed, period)
        seconds["ours"].append(took)
    with (given.out / "curves.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(columns(points))
    (given.out / "curves.svg").write_text(picture(points), encoding="utf-8")
    sys.stdout.write(
        table(points)
        + "".join(f"{side}: {min(s):.0f} to {max(s):.0f} s\n" for side, s in seconds.items())
    )
    return 0


def train_upstream(given: argparse.Namespace, seed: int, folder: Path) -> tuple[Path, float]:
    """Train by upstream's runner; give its run folder and the seconds it took."""
    settings = (
        "train.log_interval=1",
        "eval.use_eval=false",
        f"device.torch_threads={given.threads}",
        *given.set,
    )
    command = [
        *(
            "mapush.extensions.harl.run_harl",
            "--harl",
            given.harl,
            "--algo",
            given.algo,
            "--seed",
            str(seed),
        ),
        *(
            "--num_envs",
            given.num_envs,
            "--num_env_steps",
            given.num_env_steps.replace("_", ""),
            "--device",
            "cpu",
        ),
        *(
            "--out",
            str(folder / "upstream"),
            *(word for text in settings for word in ("--set", text)),
        ),
    ]
    took = timed(command)
    (config,) = (folder / "upstream").rglob("config.json")
    return config.parent, took


def train_ours(config: Path, folder: Path) -> tuple[int, float]:
    """Train by our runner under upstream's configuration; give control steps a decision and the
    seconds it took.
    """
    took = timed(["harl_mapush.train", "--load_config", str(config), "--out", str(folder)])
    lines = (folder / "config.yaml").read_text(encoding="utf-8").splitlines()
    (period,) = (
        int(line.split(":")[1]) for line in lines if line.strip().startswith("decision_period:")
    )
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


def means(
    points: list[Point], side: str, tag: str, count: int, seed: int | None = None
) -> list[float | None]:
    """Return the mean of one curve, or of all seeds', over each of ``count`` parts of the run;
    None if empty.
    """
    end = max(point.decisions for point in points)
    parts: list[list[float]] = [[] for _ in range(count)]
    for point in points:
        if (point.side, point.tag) == (side, tag) and seed in (None, point.seed):
            parts[min(count - 1, max(0, point.decisions - 1) * count // end)].append(point.value)
    return [sum(values) / len(values) if values else None for values in parts]


def columns(points: list[Point]) -> list[list[str]]:
    """Lay the curves out as rows of text, the first of them names."""
    end = max(point.decisions for point in points)
    names = [
        (side, seed, tag)
        for tag in TAGS
        for seed in sorted({p.seed for p in points})
        for side in SIDES
    ]
    curve_means = [means(points, side, tag, NUM_MEANS, seed) for side, seed, tag in names]
    rows = [["decisions", *(f"{tag.split('/')[1]} {side} {seed}" for side, seed, tag in names)]]
    for k, values in enumerate(zip(*curve_means, strict=True)):
        rows.append(
            [
                str(end * (k + 1) // NUM_MEANS),
                *("" if value is None else f"{value:.4f}" for value in values),
            ]
        )
    return rows


def picture(points: list[Point]) -> str:
    """Draw the success rate over decisions as SVG: a thin line a seed, one colour a side."""
    width = 640
    height = 300
    left = 50
    top = 20
    end = max(point.decisions for point in points)
    seeds = sorted({point.seed for point in points})
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} '
        f'{top + height + 50}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for k in range(5):
        x = left + width * k / 4
        y = top + height * (1 - k / 4)
        parts.append(f'<path d="M{left} {y:g}h{width}M{x:g} {top}v{height}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:g}" text-anchor="end">{k / 4:g}</text>')
        parts.append(
            f'<text x="{x:g}" y="{top + height + 18}" text-anchor="middle">{end * k / 4e6:.2g} '
            "M</text>"
        )
    caption = "decisions; success rate of the last 1,000 episodes while training"
    parts.append(
        f'<text x="{left + width / 2:g}" y="{top + height + 40}" '
        f'text-anchor="middle">{caption}</text>'
    )
    for k, (side, colour) in enumerate(zip(SIDES, ("#d95f02", "#1b6ca8"), strict=True)):
        parts.append(f'<text x="{left + 12}" y="{top + 20 + 18 * k}" fill="{colour}">{side}</text>')
        for seed in seeds:
            curve = means(points, side, "mapush/success_rate", NUM_MEANS, seed)
            places = [
                f"{left + width * (i + 0.5) / NUM_MEANS:.1f},{top + height * (1 - value):.1f}"
                for i, value in enumerate(curve)
                if value is not None
            ]
            parts.append(
                f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" '
                'stroke-width="2"/>'
            )
    return "\n".join([*parts, "</svg>\n"])


def table(points: list[Point]) -> str:
    """Lay out the means over seeds of each part of the run."""
    end = max(point.decisions for point in points)
    names = [(side, tag) for tag in TAGS for side in SIDES]
    rows = [
        f"{'up to decision':>16}"
        + "".join(f"{tag.split('/')[1] + ', ' + side:>26}" for side, tag in names)
    ]
    curve_means = [means(points, side, tag, NUM_ROWS) for side, tag in names]
    for k, values in enumerate(zip(*curve_means, strict=True)):
        cells = "".join(f"{'-':>26}" if value is None else f"{value:>26.5f}" for value in values)
        rows.append(f"{end * (k + 1) / NUM_ROWS:>16,.0f}{cells}")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
