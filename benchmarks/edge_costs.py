"""Seconds in which a frozen team pushes its object a metre, by how narrow the place is, by what its
robots lack in room where they push, and by the object's heading.

``python benchmarks/edge_costs.py [--suite H2] [--team pretrained:team2] [--num_episodes 100]``

The team follows the planner ``field`` on every map. Every 2 s are a window, which counts with the
metres by which the object came nearer to the first sub-goal; those of the robots' approach and of
the end of an episode do not count. The last line has the ``task.narrow_cost`` and
``task.no_room_cost`` that fit these times best: least squares over the bins, weighed by their
windows, and neither below 0.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace

import torch
from long_horizon import drawn
from measuring import emit
from torch import Tensor

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.process import seed_everything
from harl_mapush.runs import evaluation_worlds
from mapush.extensions.navigate.maps.table import MapTable, ObstacleShapes, slots_of
from mapush.extensions.navigate.planners.entries import PLANNERS
from mapush.extensions.navigate.planners.problem import (
    EdgeCosts,
    cost_of,
    lacking_room,
    solve_problem,
)
from mqe.config import assignment, merge
from mqe.registry import make_env
from mqe.world.scene import STEP_DT

WINDOW = 4  # decisions
HEADINGS = 12  # bins of the object's heading, seen from its way
BEGUN = 0.2  # [m] from its start, beyond which robots have come to the object
EDGES = {"narrow": (0.02, 0.2, 0.5), "lacking": (0.05, 0.4, 1.0)}  # between bins
LEAST = 5  # windows in a bin


def main() -> int:
    """Print a line for the bins of room, one for the headings, and the costs that fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", default="H2")
    parser.add_argument("--team", default="pretrained:team2")
    parser.add_argument("--num_episodes", type=int, default=100)
    parser.add_argument("--map_seed", type=int, default=7)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    task = {"team": arguments.team, "map_seed": arguments.map_seed}
    task["num_maps"] = arguments.num_episodes
    over = merge(config.load_suite(arguments.suite), {"task": task})
    for text in arguments.set:
        over = merge(over, assignment(text))
    cfg = evaluation_worlds.settings(None, over, num_envs=arguments.num_episodes)
    seed_everything(cfg.runner.seed)
    narrow, lacking, heading, moved = windows(cfg).unbind(dim=1)

    def seconds_a_metre(mask: Tensor) -> float:
        seconds = WINDOW * cfg.task.decision_period * STEP_DT * int(mask.sum())
        return seconds / max(float(moved[mask].sum()), 0.05)

    bins = []
    for k, j in torch.cartesian_prod(torch.arange(4), torch.arange(4)).tolist():
        mask = (_bin(narrow, "narrow") == k) & (_bin(lacking, "lacking") == j)
        if mask.sum() >= LEAST:
            means = (float(narrow[mask].mean()), float(lacking[mask].mean()))
            bins.append((*means, seconds_a_metre(mask), int(mask.sum())))
    emit(team=arguments.team, suite=arguments.suite, narrow_lacking_seconds_windows=bins)

    is_open = (_bin(narrow, "narrow") == 0) & (_bin(lacking, "lacking") == 0)
    step = 2.0 * math.pi / HEADINGS
    turned = []
    for k in range(HEADINGS):
        mask = is_open & ((heading + math.pi).div(step).floor().clamp(max=HEADINGS - 1) == k)
        if mask.sum() >= LEAST:
            middle = round(math.degrees((k + 0.5) * step - math.pi))
            turned.append((middle, seconds_a_metre(mask), int(mask.sum())))
    emit(team=arguments.team, heading_seconds_windows=turned)

    values = torch.tensor(bins)
    weights = values[:, 3:].sqrt()
    dearer = values[:, 2:3] / seconds_a_metre(is_open) - 1.0
    fit = fitted(values[:, :2] * weights, (dearer * weights)[:, 0])
    emit(team=arguments.team, narrow_cost=float(fit[0]), no_room_cost=float(fit[1]))
    return 0


def fitted(columns: Tensor, wanted: Tensor) -> Tensor:
    """Return the factors (K,), none of them negative, with which ``columns`` (B, K) sum up to
    ``wanted`` (B,) best.
    """
    factors = torch.zeros(columns.shape[1])
    for _ in range(200):
        for k, column in enumerate(columns.T):
            rest = wanted - columns @ factors + column * factors[k]
            factors[k] = (column @ rest / (column @ column).clamp(min=1e-9)).clamp(min=0.0)
    return factors


def windows(cfg: RunCfg) -> Tensor:
    """Return for each window (W, 4): how narrow it is there, 0 to 1; what robots lack in room for
    the planned direction, 0 to 3; the heading of the object in it [rad]; and the metres [m].
    """
    env = make_env(replace(cfg.env, num_envs=cfg.task.num_maps), cfg.sim, cfg.task, cfg.runner.seed)
    env.reset()
    maps, room = drawn(cfg)
    slots = slots_of(maps)
    device = env.device
    index = torch.arange(env.num_envs, device=device)  # of the map of each world
    shapes = ObstacleShapes(slots, device)
    table = MapTable(maps, slots, device)
    costs = EdgeCosts(cfg.task.narrow_cost, cfg.task.no_room_cost)
    problem, _ = solve_problem(table, shapes, maps[0].arena, room.reach, costs)
    grid = problem.grid
    narrowness = cost_of(problem.distance, room.reach, EdgeCosts(narrow=1.0)) - 1.0
    follower = PLANNERS["field"].follow(problem, cfg.task.look_ahead)  # without its sways
    start = env.state.object_pos[:, :2].clone()
    has_begun = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    actions = torch.zeros(env.num_envs, 1, 2, device=env.device)
    is_over = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    rows = []
    while not is_over.all():
        place = env.state.object_pos[:, :2].clone()
        ahead = torch.nn.functional.normalize(follower.subgoal(place, index) - place, dim=-1)
        front = env.state.object_frame[:, 0]
        across = ahead[:, 0] * front[:, 1] - ahead[:, 1] * front[:, 0]
        heading = torch.atan2(across, (front * ahead).sum(dim=-1))
        has_begun |= (place - start).norm(dim=-1) > BEGUN
        points = place.unsqueeze(1)
        narrow = grid.sample(narrowness.unsqueeze(1), points)[:, 0, 0]
        lacking = lacking_room(grid, problem.distance, points, ahead.unsqueeze(1), room.reach)
        for _ in range(WINDOW):
            is_over |= env.step(actions).done
        moved = ((env.state.object_pos[:, :2] - place) * ahead).sum(dim=-1)
        row = torch.stack((narrow.clamp(max=1.0), lacking[:, 0, 0], heading, moved), dim=1)
        rows.append(row[has_begun & ~is_over])
        env.pause(is_over)
    env.close()
    return torch.cat(rows).cpu()


def _bin(values: Tensor, name: str) -> Tensor:
    return torch.bucketize(values.contiguous(), torch.tensor(EDGES[name]))


if __name__ == "__main__":
    sys.exit(main())
