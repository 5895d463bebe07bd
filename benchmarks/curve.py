"""Learning curves against the wall clock: training that is measured now and then, and its picture.

``python benchmarks/curve.py DIR|FILE.jsonl [FILE.svg]`` draws what ``gpu.py --part
time_to_success`` wrote: a folder's
``curve.jsonl``, or any file of such lines.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from measuring import OnIteration, make_run, say, wait

from harl_mapush.config import RunCfg
from harl_mapush.evaluation.calculator import evaluate
from harl_mapush.runner import Runner
from mqe.config import dump_yaml, to_dict
from mqe.env.environment import MultiAgentEnv
from mqe.registry import EnvCfg, make_env

NUM_EPISODES = 300
EVALUATION_SEED = 0
GOALS = (0.6, 0.9)
CURVE = "curve.jsonl"
STATE = "state.pt"


def resume(cfg: RunCfg, folder: Path, limit_s: float, interval: int) -> dict[str, Any]:
    """Train from the state in ``folder``, if any, for ``limit_s`` or to the end; give what the
    curve says so far.

    The clock that counts starts with the first environment and stops while a policy is measured.
    Every ``interval`` env steps the team plays the calculator's episodes, with the ``independent``
    spawn, in worlds of their own.
    """
    begun = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(dump_yaml(to_dict(cfg)), encoding="utf-8")
    env, runner = make_run(cfg)
    trained_s = _restore(runner, folder)
    judges = _make_judges(cfg)
    runner.start()
    trained_s += time.perf_counter() - begun
    mark = time.perf_counter()

    def on_iteration(_: Any) -> None:
        nonlocal trained_s, mark
        env.statistics()
        crossed = (
            runner.progress.env_steps // interval
            > (runner.progress.env_steps - runner.progress.steps_per_iteration) // interval
        )
        is_last = runner.progress.iteration == num_iterations
        is_late = time.perf_counter() - begun > limit_s
        if not (crossed or is_last or is_late):
            return
        wait(env.device)
        trained_s += time.perf_counter() - mark
        if crossed or is_last:
            _measure(runner, judges, folder, trained_s)
        if is_late or is_last:
            _keep(runner, folder, trained_s)
            runner.progress.num_iterations = runner.progress.iteration  # ends the loop
        mark = time.perf_counter()

    num_iterations = runner.progress.num_iterations
    if runner.progress.iteration < num_iterations:
        runner.learn([OnIteration(on_iteration)])
    finished = runner.progress.iteration >= num_iterations
    for used in (env, judges):
        used.close()
    rows = read(folder)
    return {
        "finished": finished,
        "num_env_steps": runner.progress.env_steps,
        "trained_s": trained_s,
    } | reached(rows)


def reached(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the minutes and env steps until each goal was first reached, and the best rate."""
    facts: dict[str, Any] = {
        "best_success_rate": max((row["success_rate"] for row in rows), default=None)
    }
    for goal in GOALS:
        first = next((row for row in rows if row["success_rate"] >= goal), None)
        facts[f"minutes_to_{goal:.2f}"] = None if first is None else first["trained_s"] / 60.0
        facts[f"env_steps_to_{goal:.2f}"] = None if first is None else first["env_steps"]
    return facts


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the points of a curve."""
    path = folder / CURVE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def draw(rows: list[dict[str, Any]], title: str, picture: Path) -> None:
    """Draw the success rate with its interval over minutes of training, one line a seed."""
    from matplotlib import pyplot  # only pictures need it: pip install matplotlib

    figure, axes = pyplot.subplots(figsize=(7.2, 4.0), layout="constrained")
    for seed, commit in sorted({_run_of(row) for row in rows}):
        run = [row for row in rows if _run_of(row) == (seed, commit)]
        minutes = [row["trained_s"] / 60.0 for row in run]
        rates = [row["success_rate"] for row in run]
        low, high = ([row["success_ci95"][end] for row in run] for end in (0, 1))
        axes.fill_between(minutes, low, high, alpha=0.15)
        axes.plot(minutes, rates, marker="o", markersize=4, label=f"seed {seed} {commit}".strip())
    axes.legend()
    axes.set(
        title=title,
        xlabel="minutes of training",
        ylabel="success rate",
        xlim=(0, None),
        ylim=(0, 1),
    )
    axes.grid(alpha=0.3)
    figure.savefig(picture)


def _run_of(row: dict[str, Any]) -> tuple[int, str]:
    """Return which run a point belongs to: seed and commit."""
    return row["seed"], row.get("commit", "")


def _make_judges(cfg: RunCfg) -> MultiAgentEnv:
    task = dataclasses.replace(cfg.task, spawn="independent")
    return make_env(EnvCfg(NUM_EPISODES, cfg.env.num_agents), cfg.sim, task, EVALUATION_SEED)


def _measure(runner: Runner, judges: MultiAgentEnv, folder: Path, trained_s: float) -> None:
    algorithm = runner.algorithm
    figures = evaluate(judges, lambda obs: algorithm.act(obs, deterministic=True).actions)
    row = {
        "seed": runner.cfg.seed,
        "env_steps": runner.progress.env_steps,
        "trained_s": round(trained_s, 2),
    } | figures
    with (folder / CURVE).open("a") as file:
        file.write(json.dumps(row) + "\n")
    say(
        f"{runner.progress.env_steps / 1e6:.1f} M env steps, {trained_s:.0f} s: success "
        f"{figures['success_rate']:.3f}"
    )


def _keep(runner: Runner, folder: Path, trained_s: float) -> None:
    partial = folder / f".{STATE}"
    torch.save({"runner": runner.state_dict(), "trained_s": trained_s}, partial)
    os.replace(partial, folder / STATE)


def _restore(runner: Runner, folder: Path) -> float:
    path = folder / STATE
    if not path.is_file():
        (folder / CURVE).unlink(missing_ok=True)
        return 0.0
    state = torch.load(path, map_location="cpu", weights_only=True)
    runner.load_state_dict(state["runner"])
    return state["trained_s"]


def main() -> int:
    """Draw a curve."""
    parser = argparse.ArgumentParser(description="Draw the success rate over minutes of training.")
    parser.add_argument("curve", type=Path, help=f"a folder of time_to_success, or its {CURVE}")
    parser.add_argument("picture", type=Path, nargs="?", help="default: beside the curve, as .svg")
    arguments = parser.parse_args()
    path = arguments.curve
    if path.is_dir():
        rows = read(path)
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    picture = arguments.picture or path.with_suffix(".svg")
    draw(rows, "Success rate of the calculator (300 episodes, independent spawn)", picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
