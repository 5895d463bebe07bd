"""Gather the curves of OpenRL's run and of ours, and draw them: ``openrl_curves.py OPENRL_RUN RUN
[RUN ...]``.

Writes ``results/openrl_curves.jsonl`` and ``results/openrl_curves.svg``. Runs of ours are
called by their algorithm; their seconds are those of collecting and learning.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
mpl.rcParams.update({"svg.hashsalt": "1", "svg.fonttype": "none"})
import matplotlib.pyplot as plt  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

from harl_mapush.runs.run_folder import curves_folder  # noqa: E402
from mqe.config import load_yaml  # noqa: E402

RESULTS = Path("results")
NAMES = ("success_rate", "return")
MOST_POINTS = 60  # of a curve, in the file and in the figure


def of_openrl(run: Path, decision_period: int) -> list[dict[str, Any]]:
    """Return the rollouts of a run of OpenRL's, whose rewards are those of decisions."""
    lines = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    return [
        {
            "learner": "openrl_ppo",
            "env_steps": line["env_steps"],
            "seconds": line["seconds"],
            "reward": round(line["average_step_reward"] / decision_period, 5),
        }
        | {name: line[name] for name in NAMES}
        for line in lines
    ]


def of_ours(run: Path) -> list[dict[str, Any]]:
    """Return the iterations of a run of ours."""
    events = EventAccumulator(str(curves_folder(run)), size_guidance={"scalars": 0})
    events.Reload()
    tags = (
        "reward/total",
        "perf/collect_s",
        "perf/update_s",
        *(f"mapush/{name}" for name in NAMES),
    )
    values = {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in tags}
    learner = load_yaml(run / "config.yaml")["algorithm"]["name"]
    seconds = 0.0
    lines = []
    for step, reward in sorted(values["reward/total"].items()):
        seconds += values["perf/collect_s"][step] + values["perf/update_s"][step]
        line: dict[str, Any] = {"learner": learner, "env_steps": step, "seconds": round(seconds, 2)}
        line["reward"] = round(reward, 5)
        lines.append(line | {name: values[f"mapush/{name}"].get(step) for name in NAMES})
    return lines


def thinned(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most MOST_POINTS of the lines, evenly spaced, the last among them."""
    every = -(-len(lines) // MOST_POINTS)
    return lines[::-1][::every][::-1]


def main() -> None:
    """Gather and draw."""
    # The same in all runs.
    period = load_yaml(Path(sys.argv[2], "config.yaml"))["task"]["decision_period"]
    curves = [of_openrl(Path(sys.argv[1]), period), *(of_ours(Path(run)) for run in sys.argv[2:])]
    curves = [thinned(curve) for curve in curves]
    text = "".join(json.dumps(line) + "\n" for curve in curves for line in curve)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "openrl_curves.jsonl").write_text(text, encoding="utf-8")
    figure, axes = plt.subplots(1, 3, figsize=(12, 3))
    for curve in curves:
        steps = [line["env_steps"] / 1e6 for line in curve]
        minutes = [line["seconds"] / 60 for line in curve]
        success = [
            float("nan") if line["success_rate"] is None else line["success_rate"] for line in curve
        ]
        axes[0].plot(steps, [line["reward"] for line in curve], label=curve[0]["learner"])
        axes[1].plot(steps, success)
        axes[2].plot(minutes, success)
    axes[0].set(xlabel="env steps [million]", ylabel="mean reward an env step")
    axes[1].set(xlabel="env steps [million]", ylabel="success of training episodes", ylim=(0, 1))
    axes[2].set(
        xlabel="wall clock on a busy CPU [min]", ylabel="success of training episodes", ylim=(0, 1)
    )
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(RESULTS / "openrl_curves.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
