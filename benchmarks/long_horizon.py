"""Success of teams that push around obstacles, under several planners and a leader that learned:
``long_horizon.py [--suites H0 H1 ...] [--planners field ...] [--leader RUN] [--films FOLDER]``.

Every suite is played by every planner with the same starts, one episode of each map, as ``mapush
test planner --suite NAME`` does it; one JSON line each, then a table in Markdown. ``--leader`` is a
run or checkpoint of the navigation task that acts on the first planner. The maps are those of
``--map_seed``: take one that no choice was made with. ``planning_ms`` is the time in which the maps
of a suite were planned, for each of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from measuring import emit, wait

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.evaluation.episodes import Request
from harl_mapush.evaluation.measuring import measure
from harl_mapush.evaluation.policies import load_policy
from harl_mapush.process import seed_everything
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.config import assignment, merge
from mqe.controllers.team_network import read_team
from mqe.registry import make_env, resolve_sim
from mqe.tasks.navigate import room_of
from mqe.tasks.navigate.maps.families import draw_maps
from mqe.tasks.navigate.maps.table import MapTable, ObstacleShapes, slots_of
from mqe.tasks.navigate.planners.problem import solve_problem
from mqe.tasks.push import PushCfg
from mqe.viewer.video import record

SUITES = ("H0", "H1", "H2", "H3", "gate", "corridor", "forest")
PLANNERS = ("field", "straight_line", "spline", "rrt")
SEED = 20_261_124  # of the maps
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
    parser.add_argument("--planners", nargs="+", default=PLANNERS)
    parser.add_argument("--team", help="frozen team; None: that of the suite")
    parser.add_argument("--leader", help="run or checkpoint of the navigation task")
    parser.add_argument("--num_episodes", type=int, default=300)
    parser.add_argument("--map_seed", type=int, default=SEED)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--films", type=Path, help="folder for a film of each row")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    return parser


def settings(
    arguments: argparse.Namespace, suite: str, planner: str, folder: Path | None
) -> RunCfg:
    """Return the settings of one row of the table."""
    task: dict[str, Any] = {
        "planner": planner,
        "map_seed": arguments.map_seed,
        "num_maps": arguments.num_episodes,
    }
    if arguments.team is not None:
        task["team"] = arguments.team
    over = merge(config.load_suite(suite), {"task": task, "sim": {"device": arguments.device}})
    for text in arguments.set:
        over = merge(over, assignment(text))
    return evaluation_worlds.settings(folder, over)


def planning_time(cfg: RunCfg) -> float:
    """Return the milliseconds in which a map of the suite is planned."""
    _, device = resolve_sim(cfg.sim)
    room = room_of(PushCfg(**read_team(cfg.task.team).description.task).pushed_object())
    maps = draw_maps(cfg.task.map, cfg.task.map_seed, cfg.task.num_maps, room)
    slots = slots_of(maps)
    table = MapTable(maps, slots, device)
    shapes = ObstacleShapes(slots, device)
    seconds = 0.0
    for _ in range(2):  # the first time is not typical
        wait(device)
        begun = time.perf_counter()
        solve_problem(table, shapes, maps[0].arena, room.reach)
        wait(device)
        seconds = time.perf_counter() - begun
    return 1e3 * seconds / len(maps)


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


def main() -> int:
    """Print a line for each suite and policy, and the table."""
    arguments = make_parser().parse_args()
    leader = None if arguments.leader is None else checkpoint.resolve(arguments.leader)
    rows = []
    for suite in arguments.suites:
        planning_ms = planning_time(settings(arguments, suite, "field", None))
        policies = [(planner, planner, None) for planner in arguments.planners]
        if leader is not None:
            policies.append(("leader", arguments.planners[0], leader))
        for name, planner, folder in policies:
            cfg = settings(arguments, suite, planner, folder)
            seed_everything(cfg.runner.seed)
            request = Request(
                cfg,
                seeds=(cfg.runner.seed,),
                num_episodes=arguments.num_episodes,
                folder=folder,
                function="zero" if folder is None else None,
            )
            begun = time.perf_counter()
            metrics = measure(request, 0, lambda line: None)
            row = {"suite": suite, "policy": name, "team": cfg.task.team}
            row |= {key: metrics[key] for key in KEYS}
            row |= {
                "map_seed": arguments.map_seed,
                "planning_ms": planning_ms,
                "seconds": time.perf_counter() - begun,
            }
            emit(**row)
            rows.append(row)
            if arguments.films is not None:
                arguments.films.mkdir(parents=True, exist_ok=True)
                film(cfg, folder or "zero", arguments.films / f"{suite}_{name}.mp4")
    sys.stdout.write(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
