"""Planning anew at every decision, for obstacles or goals that move."""

from __future__ import annotations

import torch
from torch import Tensor

from mapush.extensions.navigate.planners.cost_to_go import CostToGo, can_branch_on
from mapush.extensions.navigate.planners.problem import Problem, clearance_of, solve_fields

FORESEEN = (0.0, 1.0, 2.0)  # [s] from now, at which the way keeps clear of moving obstacles


class Replanner:
    """The problem of N worlds at present, each on a map of its own; ``problem`` is live."""

    def __init__(self, problem: Problem, num_envs: int) -> None:
        """Plan on the maps of ``problem``."""
        self._maps = problem.maps
        device = problem.maps.goal.device
        index = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.problem = problem._replace(
            maps=problem.maps.rows(index),
            fields=problem.fields[index],
        )
        self.worlds = torch.arange(num_envs, device=device)
        self._solver = CostToGo(problem.grid, device)

    def update(self, index: Tensor, time: Tensor, mask: Tensor | None = None) -> None:
        """Solve for the goals of maps ``index`` (N,) as they are at ``time`` (N,) [s], and for the
        obstacles as they are then and shortly after, in the worlds of ``mask`` (N,) at least.
        """
        worlds = self.worlds
        if mask is not None and can_branch_on(mask):
            worlds = worlds[mask]
            if not len(worlds):
                return
        problem = self.problem
        grid = problem.grid
        index = index[worlds]
        yaw = self._maps.obstacle_yaw[index]
        goal = self._maps.goal_at(index, time[worlds])
        points = grid.centers.flatten(0, 1)
        nearest = []
        for ahead in FORESEEN:
            pos = self._maps.obstacles_at(index, time[worlds] + ahead)
            nearest.append(clearance_of(problem.arena, problem.shapes, points, pos, yaw))
        clearance = torch.stack(nearest).amin(dim=0).unflatten(1, (grid.height, grid.width))
        problem.fields[worlds] = solve_fields(
            self._solver, clearance, goal, problem.reach, problem.costs
        )
        problem.maps.goal[worlds] = goal
