"""Team success in pushing around obstacles, under several planners and a learned leader:
``long_horizon.py [--suites doors ...] [--policies field ...] [--leader RUN] [--films FOLDER]
[--figure FILE]``.

Every policy plays every suite, or family of maps, with equal starts, one episode per map, like
``mapush test planner --suite NAME``. It prints one JSON line each, then a table in Markdown. A
policy is a planner for the team, or one from ``BASELINES``. ``sampled`` tries ``--num_samples``
sub-goals in the simulator and takes the best, as an upper bound without learning. ``--leader`` is a
run or checkpoint from the navigation task. It acts on the first policy, or on ``field`` without
one. The maps are those for ``--map_seed``. Choose a seed not used for any choice.

With ``--layouts`` nothing is played: each suite's maps are written to a folder, as JSON for
``task.map``.

With ``--training`` nothing is played: a line for each run of the task gives the successes per world
and simulated hour in each eighth of its training.

With ``--plans`` nothing is played: each planner plans each map on one CPU thread. A line gives its
median CPU time and its path length relative to the shortest.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import more_maps as more_maps  # registers families of maps
import navigation_baselines as navigation_baselines  # registers planners and mid levels
import numpy as np
import torch
from map_files import to_json
from matplotlib.figure import Figure
from measuring import emit
from sampled_subgoals import measure_sampled
from torch import Tensor

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.evaluation.episodes import Request
from harl_mapush.evaluation.measuring import measure
from harl_mapush.evaluation.policies import load_policy
from harl_mapush.process import seed_everything
from harl_mapush.runs import checkpoint, evaluation_worlds, run_folder
from mapush.extensions.navigate.maps.arena_map import ArenaMap, Room
from mapush.extensions.navigate.maps.families import FAMILIES, draw_maps
from mapush.extensions.navigate.maps.solved import room_of
from mapush.extensions.navigate.maps.table import MapTable, ObstacleShapes, slots_of
from mapush.extensions.navigate.planners.entries import PLANNERS
from mapush.extensions.navigate.planners.followers import Follower
from mapush.extensions.navigate.planners.problem import solve_problem
from mapush.extensions.navigate.settings import NAVIGATE_TERMS
from mapush.extensions.report.run_logs import read_run
from mqe.config import assignment, merge
from mqe.controllers.frozen_policy import describe_policy
from mqe.registry import make_env
from mqe.tasks.push import PushCfg
from mqe.tasks.term_settings import chosen_weights
from mqe.viewer.video import record
from mqe.world.scene import STEP_DT

SUITES = ("two_cubes", "scattered", "doors", "u_turn")
# Planner and actions of policies that are no planner.
BASELINES = {
    "scripted_solo": ("field", "scripted_solo"),
    "scripted_team": ("field", "scripted_team"),
    "no_mid_level": ("field", "walk"),
    "no_high_level": ("goal", "zero"),
    "sampled": ("field", "zero"),
    "random": ("field", "random"),  # a random shift at every decision
}
POLICIES = ("field", "straight_line", "spline", "rrt", *BASELINES)
SEED = 20_261_126  # of the maps
NUM_PARTS = 8  # of a training
KEYS = (
    "success_rate",
    "success_ci95",
    "num_episodes",
    "spl",
    "time_given_success_s",
    "finished_time_s",
    "object_contact_share",
    "robot_contact_share",
    "fall_rate",
    "collapse_rate",
    "collision_rate",
    "timeout_rate",
    "num_broken",
)


def make_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suites", nargs="+", default=SUITES)
    parser.add_argument("--policies", "--planners", nargs="*", default=POLICIES)
    parser.add_argument("--team", help="frozen team; None: that of the suite")
    parser.add_argument("--leader", help="run or checkpoint of the navigation task")
    parser.add_argument("--num_episodes", type=int, default=300)
    parser.add_argument("--num_samples", type=int, default=8, help="worlds a map of sampled")
    parser.add_argument("--map_seed", type=int, default=SEED)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--plans", action="store_true", help="plan, and do not play")
    parser.add_argument("--layouts", type=Path, metavar="FOLDER")
    parser.add_argument("--training", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--figure", type=Path, help="picture of the successes (.svg, .png)")
    parser.add_argument("--films", type=Path, help="folder for a film of each row")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    return parser


def settings(arguments: argparse.Namespace, suite: str, policy: str, folder: Path | None) -> RunCfg:
    """Return the settings for one table row."""
    planner, _ = BASELINES.get(policy, (policy, "zero"))
    task: dict[str, Any] = {
        "planner": planner,
        "map_seed": arguments.map_seed,
        "num_maps": arguments.num_episodes,
    }
    if arguments.team is not None:
        task["team"] = arguments.team
    worlds = config.load_suite(suite if suite in config.suites() else "scattered").worlds
    if suite in FAMILIES:
        task["map"] = suite
    over = merge(worlds, {"task": task, "sim": {"device": arguments.device}})
    for text in arguments.set:
        over = merge(over, assignment(text))
    return evaluation_worlds.settings(folder, over)


def successes_per_hour(run: Path) -> list[float]:
    """Return the successes per world and simulated hour, in each part of a training."""
    task = config.resolve(run_folder.read_config(run), {})[0].task
    curve = read_run(run).curves["reward/success"]
    ends = np.linspace(0.0, curve.env_steps[-1], NUM_PARTS + 1)
    part = np.searchsorted(ends, curve.env_steps) - 1
    hourly = (
        3600.0 / STEP_DT / chosen_weights(NAVIGATE_TERMS.rewards, task)["success"] * curve.values
    )
    return [float(hourly[part == k].mean()) for k in range(NUM_PARTS)]


def drawn(cfg: RunCfg) -> tuple[list[ArenaMap], Room]:
    """Return a suite's maps, and the team object's required clearance."""
    room = room_of(PushCfg(**describe_policy(cfg.task.team).task).pushed_object())
    return draw_maps(cfg.task.map, cfg.task.map_seed, cfg.task.num_maps, room), room


def plans(cfg: RunCfg, planner: str) -> dict[str, float]:
    """Return the median CPU time per map [ms] and the mean planned path length relative to the
    shortest.
    """
    maps, room = drawn(cfg)
    slots = slots_of(maps)
    shapes = ObstacleShapes(slots, "cpu")
    times = []
    lengths = []
    for arena_map in maps:
        table = MapTable.of([arena_map], slots, "cpu")
        begun = time.thread_time()
        problem, shortest = solve_problem(table, shapes, arena_map.arena, room.reach)
        solved = time.thread_time()
        follower = PLANNERS[planner].follow(problem, cfg.task.look_ahead)
        planned = time.thread_time()
        # The cost-to-go of every cell is the field's own work; others do without.
        times.append(planned - (begun if planner == "field" else solved))
        lengths.append(float(way_length(follower, table) / shortest))
    return {
        "planning_ms": 1e3 * statistics.median(times),
        "way_over_shortest": statistics.mean(lengths),
    }


def way_length(follower: Follower, table: MapTable) -> Tensor:
    """Return an object's path length [m] along straight lines to each sub-goal, 0.1 m at a time."""
    position = table.start
    index = torch.zeros(1, dtype=torch.int64)
    length = torch.zeros(())
    for _ in range(1000):
        rest = table.goal - position
        if rest.norm() < 0.1:
            break
        ahead = follower.subgoal(position, index) - position
        position = position + 0.1 * ahead / ahead.norm().clamp(min=1e-6)
        length += 0.1
    return length + rest.norm()


def played(cfg: RunCfg, num_episodes: int, policy: Path | str) -> dict[str, Any]:
    """Return the calculator's metrics over ``num_episodes`` episodes of a checkpoint or a named
    policy.
    """
    is_named = isinstance(policy, str)
    request = Request(
        cfg,
        seeds=(cfg.runner.seed,),
        num_episodes=num_episodes,
        folder=None if is_named else policy,
        function=policy if is_named else None,
    )
    return measure(request)


def film(cfg: RunCfg, policy: Path | str, path: Path) -> None:
    """Film two episodes at three times the world's speed."""
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    record(env, load_policy(policy, cfg, env), path, episodes=2, seconds=60.0, speed=3.0)
    env.close()


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows in Markdown."""
    heads = ("suite", "policy", "success", "SPL", "time [s]", "object touches", "robots touch")
    lines = [heads, ("---",) * len(heads)]
    for row in rows:
        low, high = row["success_ci95"]
        seconds = row["time_given_success_s"]
        lines.append(
            (
                row["suite"],
                row["policy"],
                f"{row['success_rate']:.3f} ({low:.3f} to {high:.3f})",
                f"{row['spl']:.3f}",
                "-" if seconds is None else f"{seconds:.1f}",
                f"{100.0 * row['object_contact_share']:.2f} %",
                f"{100.0 * row['robot_contact_share']:.2f} %",
            )
        )
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def figure(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the success rates with their intervals, a colour for each policy."""
    suites = list(dict.fromkeys(row["suite"] for row in rows))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    drawing = Figure(figsize=(8.0, 3.0), layout="constrained")
    axes = drawing.subplots()
    for k, policy in enumerate(policies):
        policy_rows = [row for row in rows if row["policy"] == policy]
        x = [
            suites.index(row["suite"]) + 0.8 * ((k + 0.5) / len(policies) - 0.5)
            for row in policy_rows
        ]
        rate = np.array([row["success_rate"] for row in policy_rows])
        low, high = np.array([row["success_ci95"] for row in policy_rows]).T
        error = np.clip((rate - low, high - rate), 0.0, None)  # rounding at 0 and 1
        axes.errorbar(x, rate, error, fmt="o", capsize=2, label=policy)
    axes.set_xticks(range(len(suites)), suites)
    axes.set(ylim=(-0.03, 1.03), ylabel="success rate, 95 %")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    drawing.savefig(path)


def main() -> int:
    """Print a line for each suite and policy, and the table. Return the exit code."""
    return config.exit_code(lambda: carry_out(make_parser().parse_args()), "long_horizon.py")


def carry_out(arguments: argparse.Namespace) -> int:
    """Run the command line's request."""
    if arguments.figure is not None:
        config.check_writable("figure", str(arguments.figure))
    for folder in (arguments.layouts, arguments.films):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    leader = None if arguments.leader is None else checkpoint.resolve(arguments.leader)
    if arguments.layouts is not None:
        for suite in arguments.suites:
            maps, _ = drawn(settings(arguments, suite, "field", None))
            (arguments.layouts / f"{suite}.json").write_text(to_json(maps), encoding="utf-8")
        return 0
    if arguments.training is not None:
        for run in arguments.training:
            emit(run=run.name, successes_per_hour=successes_per_hour(run))
        return 0
    if arguments.plans:
        torch.set_num_threads(1)
        for suite, planner in itertools.product(arguments.suites, arguments.policies):
            cfg = settings(arguments, suite, planner, None)
            emit(suite=suite, planner=planner, num_maps=cfg.task.num_maps, **plans(cfg, planner))
        return 0
    rows = []
    for suite in arguments.suites:
        policies: list[tuple[str, str, Path | None]] = [
            (name, name, None) for name in arguments.policies
        ]
        if leader is not None:
            policies.append(("leader", (*arguments.policies, "field")[0], leader))
        for name, policy, folder in policies:
            cfg = settings(arguments, suite, policy, folder)
            seed_everything(cfg.runner.seed)
            actor = folder or BASELINES.get(name, (name, "zero"))[1]
            begun = time.perf_counter()
            if name == "sampled":
                metrics = measure_sampled(cfg, arguments.num_episodes, arguments.num_samples)
            else:
                metrics = played(cfg, arguments.num_episodes, actor)
            row = {"suite": suite, "policy": name, "team": cfg.task.team}
            row |= {key: metrics[key] for key in KEYS}
            row |= {
                "map_seed": arguments.map_seed,
                "seconds": time.perf_counter() - begun,
            }
            emit(**row)
            rows.append(row)
            if arguments.films is not None and name != "sampled":
                film(cfg, actor, arguments.films / f"{suite}_{name}.mp4")
    sys.stdout.write(table(rows))
    if arguments.figure is not None:
        figure(rows, arguments.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
