"""Objects of the team suites, pushed by ``scripted_walk`` with one robot fewer and with all robots.

``python benchmarks/one_fewer.py --processes 8`` plays all cells and adds their rows to
``benchmarks/results/one_fewer.jsonl``; ``python docs/_hooks/result_pages.py`` makes the table. A
cell has 300 starts, 50 of each seed from 2000 on. At 1 m/s those of the first two seeds last 60 s,
so that a row counts success within 20 s and within 60 s.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from harl_mapush import config
from harl_mapush.evaluation.calculator import first_episodes
from harl_mapush.evaluation.workers import run_jobs
from mqe.config import merge
from mqe.registry import TASKS, make_env

FILE = Path(__file__).parent / "results" / "one_fewer.jsonl"
SUITES = {"team2": 2, "team3": 3, "team4": 4, "team6": 6, "team8": 8}
EPISODES = 50  # of each seed
SEEDS = range(2000, 2006)
LONG_SEEDS = (2000, 2001)
SHORT = 20.0  # [s]
LONG = 60.0  # [s]

Cell = dict[str, Any]


def main() -> int:
    """Play the cells and write their rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=[*SUITES])
    parser.add_argument("--objects", nargs="+", help="default: those of each suite")
    parser.add_argument("--seeds", nargs="+", type=int, default=[*SEEDS])
    parser.add_argument("--episodes", type=int, default=EPISODES, help="of each seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FILE)
    arguments = parser.parse_args()
    jobs = [*cells(arguments.suites, arguments.objects, arguments.seeds, arguments.episodes)]
    # Strong robots first, whose successes bound those of all others.
    jobs.sort(key=lambda job: (-job["foot"], -job["speed"], job["seconds"], job["seed"]))
    with arguments.out.open("a", encoding="utf-8") as file:
        for _, row in run_jobs(play, jobs, arguments.processes):
            file.write(json.dumps(row) + "\n")
            file.flush()
    return 0


def cells(
    suites: list[str], objects: list[str] | None, seeds: list[int], episodes: int
) -> Iterator[Cell]:
    """Yield the cells: one robot fewer at both speeds and on both feet, and the whole team at 1 m/s
    on feet of friction 0.55.
    """
    for suite in suites:
        size = SUITES[suite]
        fewer = [(size - 1, foot, speed) for foot in (0.55, 0.8) for speed in (0.65, 1.0)]
        masses = config.load_suite(suite).worlds["task"]["object_mass"]
        for name in objects or masses:
            for robots, foot, speed in (*fewer, (size, 0.55, 1.0)):
                for seed in seeds:
                    is_long = size > 4 or (seed in LONG_SEEDS and speed == 1.0)
                    yield {
                        "suite": suite,
                        "object": name,
                        "mass": masses[name],
                        "robots": robots,
                        "foot": foot,
                        "speed": speed,
                        "seed": seed,
                        "seconds": LONG if is_long else SHORT,
                        "num_episodes": episodes,
                    }


def play(cell: Cell) -> Cell:
    """Return a cell with its numbers of successes."""
    torch.set_num_threads(1)
    over = {
        "env": {
            "num_envs": cell["num_episodes"],
            "num_agents": cell["robots"],
            "foot_friction": [cell["foot"]],
        },
        "sim": {"name": "mujoco", "device": "cpu", "num_threads": 1},
        "task": {
            "object": cell["object"],
            "decision_period": 5,
            "action_scale": [cell["speed"]] * 3,
            "episode_length_s": cell["seconds"],
        },
    }
    cfg, _ = config.resolve({}, merge(config.load_suite(cell["suite"]).worlds, over))
    env = make_env(cfg.env, cfg.sim, cfg.task, cell["seed"])
    episodes = first_episodes(env, TASKS[cfg.task.name].policies["scripted_walk"](env))
    env.close()
    is_success = (episodes["success"] > 0.5) & ~episodes["broken"]
    is_early = is_success & (episodes["episode_time_s"] <= SHORT)
    within = {"within_20_s": int(is_early.sum())}
    if cell["seconds"] == LONG:
        within["within_60_s"] = int(is_success.sum())
    return {**cell, **within}


if __name__ == "__main__":
    sys.exit(main())
