"""Gather the curves of OpenRL's run and of ours, and draw them: ``openrl_curves.py OPENRL_RUN RUN [RUN ...]``.

Writes ``benchmarks/results/cpu_openrl.jsonl`` and ``docs/openrl_curves.svg``. Runs of ours are called by their
algorithm; their seconds are those of collecting and learning.
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

from harl_mapush.runs import curves_folder  # noqa: E402
from mqe.config import load_yaml  # noqa: E402

ROOT = Path(__file__).parent.parent
NAMES = ("success_rate", "return")


def of_openrl(run: Path) -> list[dict[str, Any]]:
    """Return the rollouts of a run of OpenRL's."""
    lines = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    return [
        {"learner": "openrl_ppo", "env_steps": line["env_steps"], "seconds": line["seconds"],
         "reward": round(line["average_step_reward"], 2)} | {name: line[name] for name in NAMES}
        for line in lines
    ]  # fmt: skip


def of_ours(run: Path) -> list[dict[str, Any]]:
    """Return the iterations of a run of ours."""
    events = EventAccumulator(str(curves_folder(run)), size_guidance={"scalars": 0})
    events.Reload()
    tags = ("reward/total", "perf/collect_s", "perf/update_s", *(f"mapush/{name}" for name in NAMES))
    values = {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in tags}
    learner, seconds, lines = load_yaml(run / "config.yaml")["algorithm"]["name"], 0.0, []
    for step, reward in sorted(values["reward/total"].items()):
        seconds += values["perf/collect_s"][step] + values["perf/update_s"][step]
        line = {"learner": learner, "env_steps": step, "seconds": round(seconds, 2), "reward": round(reward, 2)}
        lines.append(line | {name: values[f"mapush/{name}"].get(step) for name in NAMES})
    return lines


def main() -> None:
    """Gather and draw."""
    curves = [of_openrl(Path(sys.argv[1])), *(of_ours(Path(run)) for run in sys.argv[2:])]
    text = "".join(json.dumps(line) + "\n" for curve in curves for line in curve)
    (ROOT / "benchmarks" / "results" / "cpu_openrl.jsonl").write_text(text, encoding="utf-8")
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
    for curve in curves:
        rewards = [line["reward"] for line in curve]
        axes[0].plot([line["env_steps"] / 1e3 for line in curve], rewards, label=curve[0]["learner"])
        axes[1].plot([line["seconds"] for line in curve], rewards)
    axes[0].set(xlabel="env steps [thousand]", ylabel="mean reward a decision")
    axes[1].set(xlabel="wall clock on a busy CPU [s]")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "openrl_curves.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
