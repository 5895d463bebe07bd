"""Time the planner and the simulation of obstacles, one JSON line each.

``python benchmarks/among_obstacles.py --part NAME [--set section.key=value]``

- ``plans``: milliseconds a map of the planner ``field``, from obstacles to the cost-to-go of every
cell, of ``--num_maps`` maps at once, and of the sub-goals of as many worlds.
- ``steps``: ``env.step`` of ``--num_envs`` worlds with ten cubes and in an open arena of the same
size, in turns.

``--set sim.device=cpu`` with few maps or worlds tries it on a CPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import torch
from measuring import add_settings, emit, interleaved, lines_of_simulators, name_of, settings

from harl_mapush.config import RunCfg
from mapush.extensions.navigate.entry import room_of
from mapush.extensions.navigate.maps.families import draw_maps
from mapush.extensions.navigate.maps.table import MapTable, ObstacleShapes, slots_of
from mapush.extensions.navigate.planners.entries import PLANNERS
from mapush.extensions.navigate.planners.problem import solve_problem
from mqe.controllers.team_network import read_team
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env
from mqe.tasks.push import PushCfg

FAMILIES = {"obstacles": "scattered", "open": "open_arena"}  # both 20 x 14 m
NUM_DISTINCT = 64  # maps that are drawn; the planner solves each as often as it takes


def main() -> int:
    """Measure one part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_settings(parser, "navigate")
    parser.add_argument("--part", choices=("plans", "steps"), required=True)
    parser.add_argument("--maps", nargs="+", default=("scattered", "doors", "u_turn"))
    parser.add_argument("--num_maps", type=int, nargs="+", default=(256, 512, 1024))
    parser.add_argument("--num_envs", type=int, nargs="+", default=(1024, 2048))
    parser.add_argument("--rounds", type=int, default=5, help="of a measurement; one warms up")
    arguments = parser.parse_args()
    if arguments.part == "plans":
        for family in arguments.maps:
            cfg = settings(arguments, task={"map": family})
            for num_maps in arguments.num_maps:
                time_plans(cfg, num_maps, arguments.rounds)
    else:
        for num_envs in arguments.num_envs:
            with lines_of_simulators():
                time_steps(arguments, num_envs)
    return 0


def time_plans(cfg: RunCfg, num_maps: int, num_rounds: int) -> None:
    """Print the milliseconds a map of a family, planned with ``num_maps`` at once."""
    device = torch.device(cfg.sim.device)
    room = room_of(PushCfg(**read_team(cfg.task.team).description.task).pushed_object())
    drawn = draw_maps(cfg.task.map, cfg.task.map_seed, min(NUM_DISTINCT, num_maps), room)
    maps = [drawn[k % len(drawn)] for k in range(num_maps)]
    slots = slots_of(drawn)
    table = MapTable(maps, slots, device)
    shapes = ObstacleShapes(slots, device)
    problem, _ = solve_problem(table, shapes, drawn[0].arena, room.reach)
    follower = PLANNERS[cfg.task.planner].follow(problem, cfg.task.look_ahead)
    index = torch.arange(num_maps, device=device)
    parts = {
        # Two fields: the planner's cost-to-go, and lengths alone.
        "plan": lambda: solve_problem(table, shapes, drawn[0].arena, room.reach),
        "subgoal": lambda: follower.subgoal(table.start, index),
    }
    times = interleaved(device, parts, num_rounds, num_calls=1)
    emit(
        part="plans",
        device=name_of(device),
        map=cfg.task.map,
        num_maps=num_maps,
        ms_a_map={name: statistics.median(each) / num_maps for name, each in times.items()},
    )


def time_steps(arguments: argparse.Namespace, num_envs: int) -> None:
    """Print the milliseconds of a decision of ``num_envs`` worlds with and without obstacles."""
    worlds: dict[str, MultiAgentEnv] = {}
    for name, family in FAMILIES.items():
        cfg = settings(arguments, env={"num_envs": num_envs}, task={"map": family})
        worlds[name] = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
        worlds[name].reset(staggered=True)
    device = worlds["open"].device
    actions = torch.zeros(num_envs, 1, 2, device=device)
    parts = {name: lambda env=env: env.step(actions) for name, env in worlds.items()}
    times = interleaved(device, parts, arguments.rounds, num_calls=4)
    ratios = [
        without / obstacles
        for without, obstacles in zip(times["open"], times["obstacles"], strict=True)
    ]
    emit(
        part="steps",
        device=name_of(device),
        num_envs=num_envs,
        control_steps=worlds["open"].decision_period,
        ms_a_decision={name: statistics.median(each) for name, each in times.items()},
        rate_over_that_without=statistics.median(ratios),
        ratios=ratios,
    )
    for env in worlds.values():
        env.close()


if __name__ == "__main__":
    sys.exit(main())
