"""Objects of the team suites, pushed by the whole team and with one robot fewer.

``python benchmarks/one_fewer.py --processes 8`` plays all cells and adds their rows to
``benchmarks/results/one_fewer.jsonl``; ``python docs/_hooks/result_pages.py`` makes the tables. A
cell has ``--episodes`` starts of each seed, and the time limit of its suite or ``--seconds``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from results import ONE_FEWER_FILE, weights, worlds

from harl_mapush import config
from harl_mapush.evaluation.calculator import first_episodes
from harl_mapush.evaluation.policies import load_policy, policy_names
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.config import merge
from mqe.extensions import load_extensions
from mqe.registry import make_env

SUITES = {"team2": 2, "team3": 3, "team4": 4, "team6": 6, "team8": 8}
POLICIES = ("scripted_walk", "pretrained:any")

Cell = dict[str, Any]


def main() -> int:
    """Play the cells and write their rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=["team2", "team3", "team4"])
    parser.add_argument("--objects", nargs="+", help="default: those of each suite")
    parser.add_argument("--policies", nargs="+", default=[*POLICIES])
    parser.add_argument("--seeds", nargs="+", type=int, default=[2000])
    parser.add_argument("--episodes", type=int, default=50, help="of each seed")
    parser.add_argument("--seconds", type=float, help="time limit; all feet then have 0.55")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ONE_FEWER_FILE)
    arguments = parser.parse_args()
    load_extensions()
    jobs = [*cells(arguments)]
    processes = multiprocessing.get_context("spawn").Pool(arguments.processes)
    with processes, arguments.out.open("a", encoding="utf-8") as file:
        for row in processes.imap_unordered(play, jobs):
            file.write(json.dumps(row) + "\n")
            file.flush()
    return 0


def cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells: one robot fewer on feet of both frictions, the whole team on 0.55."""
    feet = (0.8, 0.55) if arguments.seconds is None else (0.55,)
    for suite in arguments.suites:
        size = SUITES[suite]
        teams = [*((size - 1, foot) for foot in feet), (size, 0.55)]
        masses = config.load_suite(suite).worlds["task"]["object_mass"]
        for name in arguments.objects or masses:
            for policy in arguments.policies:
                for robots, foot in teams:
                    for seed in arguments.seeds:
                        yield {
                            "suite": suite,
                            "object": name,
                            "mass": masses[name],
                            "policy": policy,
                            "weights": weights(policy),
                            "worlds": worlds(suite),
                            "robots": robots,
                            "foot": foot,
                            "seed": seed,
                            "num_episodes": arguments.episodes,
                            "limit": arguments.seconds,
                        }


def play(cell: Cell) -> Cell:
    """Return a cell with its number of successes and their mean time [s]."""
    load_extensions()
    torch.set_num_threads(1)
    over = {
        "env": {
            "num_envs": cell["num_episodes"],
            "num_agents": cell["robots"],
            "foot_friction": [cell["foot"]],
        },
        "sim": {"name": "mujoco", "device": "cpu", "num_threads": 1},
        "task": {"object": cell["object"], "decision_period": 5},
    }
    if cell["limit"] is not None:
        over["task"]["episode_length_s"] = cell["limit"]
    is_script = cell["policy"] in policy_names()
    folder = None if is_script else checkpoint.resolve(cell["policy"])
    over = merge(config.load_suite(cell["suite"]).worlds, over)
    cfg = evaluation_worlds.settings(folder, over)
    env = make_env(cfg.env, cfg.sim, cfg.task, cell["seed"])
    episodes = first_episodes(env, load_policy(folder or cell["policy"], cfg, env))
    env.close()
    is_success = (episodes["success"] > 0.5) & ~episodes["broken"]
    times = episodes["episode_time_s"][is_success]
    seconds = round(float(times.mean()), 1) if len(times) else None
    return {**cell, "num_successes": int(is_success.sum()), "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
