"""Problems in moving worlds: obstacles and goals move, or robots discover obstacles.

Each of N worlds has its own map. The cost-to-go is solved again at a decision's end.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from mapush.extensions.navigate.maps.arena_map import ROBOT_ROOM
from mapush.extensions.navigate.planners.cost_to_go import CostToGo, Grid, can_branch_on
from mapush.extensions.navigate.planners.problem import (
    MARGIN,
    Problem,
    clearance_of,
    solve_fields,
)
from mapush.extensions.navigate.rays import RANGE, look_around, ray_directions
from mqe.tasks.terms import Memory
from mqe.world.state import SceneState

FORESEEN = (0.0, 1.0, 2.0)  # [s] from now, at which the way keeps clear of moving obstacles
_INSIDE = 0.02  # [m] behind the surface that a ray meets
_FAR = 100.0  # [m] from a cell without a met place nearby


class LiveProblem(ABC):
    """N worlds' present problem. ``problem`` is live."""

    def __init__(self, problem: Problem, num_envs: int) -> None:
        """Plan on the maps in ``problem``."""
        device = problem.maps.goal.device
        first = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._maps = problem.maps
        self._solver = CostToGo(problem.grid, device)
        self.worlds = torch.arange(num_envs, device=device)
        self.problem = problem._replace(maps=problem.maps.rows(first), fields=problem.fields[first])

    @abstractmethod
    def clearance(self, worlds: Tensor, index: Tensor, time: Tensor) -> Tensor:
        """Return the distance (M, H, W) [m] to obstacles and walls in ``worlds`` (M,), on maps
        ``index`` (M,) at their episodes' ``time`` (M,) [s].
        """

    def see(self, state: SceneState) -> None:  # noqa: B027 - most planners know the map
        """Add the obstacles in sight at a decision's end."""

    def update(self, index: Tensor, time: Tensor, mask: Tensor) -> None:
        """Solve again in the worlds of ``mask`` (N,), on maps ``index`` (N,) at their episodes'
        ``time`` (N,) [s].
        """
        fields = self.problem.fields
        goal = self._maps.goal_at(index, time)
        self.problem.maps.goal.copy_(torch.where(mask.unsqueeze(1), goal, self.problem.maps.goal))
        if not can_branch_on(mask):
            solved = self._solve(self.worlds, index, time)
            fields.copy_(torch.where(mask.view(-1, 1, 1, 1), solved, fields))
            return
        worlds = self.worlds[mask]
        if len(worlds) > 0:
            fields[worlds] = self._solve(worlds, index[worlds], time[worlds])

    def _solve(self, worlds: Tensor, index: Tensor, time: Tensor) -> Tensor:
        """Return the fields (M, 3, H, W) for ``worlds`` (M,)."""
        problem = self.problem
        clearance = self.clearance(worlds, index, time)
        goal = problem.maps.goal[worlds]
        return solve_fields(self._solver, clearance, goal, problem.reach)


class MovingProblem(LiveProblem):
    """Obstacles and goals move along lines. Paths keep clear of present and predicted obstacle
    positions.
    """

    def clearance(self, worlds: Tensor, index: Tensor, time: Tensor) -> Tensor:
        """Return the least distance over the predicted times."""
        problem = self.problem
        grid = problem.grid
        points = grid.centers.flatten(0, 1)
        yaw = self._maps.obstacle_yaw[index]
        nearest = []
        for ahead in FORESEEN:
            pos = self._maps.obstacles_at(index, time + ahead)
            nearest.append(clearance_of(problem.arena, problem.shapes, points, pos, yaw))
        return torch.stack(nearest).amin(dim=0).unflatten(1, (grid.height, grid.width))


class SeenProblem(LiveProblem):
    """Robots know the goal and the arena, and mark the ends of their rays on a grid.

    The grid has half the planner's cell size. Cells without a mark count as free. Moving obstacles
    leave a trace.
    """

    def __init__(self, problem: Problem, num_envs: int, memory: Memory) -> None:
        """Begin without marks. Marks are stored in ``memory``."""
        super().__init__(problem, num_envs)
        grid = problem.grid
        self._lengths = grid.centers.new_tensor(problem.arena)
        half_size = self._lengths / 2
        self._to_wall = (half_size - grid.centers.abs()).amin(dim=-1)  # (H, W) [m]
        self._size = (2 * grid.width, 2 * grid.height)
        self._num_cells = grid.centers.new_tensor(self._size)
        # One place more, for rays without an obstacle.
        num_places = self._size[0] * self._size[1]
        self._is_met = memory.remember("is_met", num_places + 1, dtype=torch.bool)
        self._is_stale = memory.remember("is_stale", start=1.0, dtype=torch.bool)
        seen_fields = memory.remember("known", 3, grid.height, grid.width, start=None)
        self.problem = self.problem._replace(fields=seen_fields)

    def see(self, state: SceneState) -> None:
        """Mark the ends of the robots' rays on obstacles."""
        problem = self.problem
        directions = ray_directions(state)
        distance = look_around(state, directions, problem.shapes, problem.arena).unsqueeze(-1)
        ends = state.robot_pos[..., None, :2] + (distance + _INSIDE) * directions
        share = ends / self._lengths + 0.5
        is_met = (distance[..., 0] < RANGE) & ((share > 0.0) & (share < 1.0)).all(dim=-1)
        column, row = (share * self._num_cells).long().unbind(dim=-1)
        position = torch.where(is_met, row * self._size[0] + column, -1).flatten(1)
        position = torch.remainder(position, self._is_met.shape[1])
        is_new = is_met.flatten(1) & ~self._is_met.gather(1, position)
        self._is_met.scatter_(1, position, True)
        self._is_stale |= is_new.any(dim=1)

    def update(self, index: Tensor, time: Tensor, mask: Tensor) -> None:
        """Solve again in worlds of ``mask`` with new marks or a moving goal."""
        is_stale = mask if self._maps.has_moving_goals else mask & self._is_stale
        self._is_stale &= ~mask
        super().update(index, time, is_stale)

    def clearance(self, worlds: Tensor, index: Tensor, time: Tensor) -> Tensor:
        """Return the distance to marked places and walls."""
        problem = self.problem
        width, height = self._size
        cells = self._is_met[worlds, :-1].unflatten(1, (height, width))
        furthest = problem.reach + MARGIN + ROBOT_ROOM
        return torch.minimum(distance_to_met(cells, problem.grid, furthest), self._to_wall)


def distance_to_met(is_met: Tensor, grid: Grid, furthest: float) -> Tensor:
    """Return the distance (M, H, W) [m] from each cell to the nearest True in ``is_met`` (M, 2 H, 2
    W), on a grid with half the cell size.

    The distance is large without a True within ``furthest`` [m] along x and y.
    """
    half_x = grid.cell[0] / 2
    half_y = grid.cell[1] / 2
    reach_x = math.ceil(furthest / half_x)
    reach_y = math.ceil(furthest / half_y)
    pad = torch.nn.functional.pad(is_met, (reach_x, reach_x, reach_y, reach_y))
    squared = pad.new_full((*pad.shape[:2], grid.width), _FAR**2, dtype=torch.float32)
    for k in range(2 * reach_x):
        offset = (k - reach_x + 0.5) * half_x
        column = pad[:, :, k + 1 : k + 1 + 2 * grid.width : 2][:, :, : grid.width]
        squared = torch.where(column, squared.clamp(max=offset**2), squared)
    nearest = squared.new_full((len(pad), grid.height, grid.width), _FAR**2)
    for k in range(2 * reach_y):
        offset = (k - reach_y + 0.5) * half_y
        rows = squared[:, k + 1 : k + 1 + 2 * grid.height : 2]
        nearest = torch.minimum(nearest, rows[:, : grid.height] + offset**2)
    return nearest.sqrt()
