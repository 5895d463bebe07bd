"""The planner without a map: the field around what the robots' rays have met so far.

Each world has a grid of the places where rays ended, of half the planner's cell. Places that no ray
has met count as free. The cost-to-go is solved again, at the end of a decision, in the worlds in
which rays met something new, and in all if goals move. Goal and arena are known. Obstacles that
move leave their trace.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mapush.extensions.navigate.maps.arena_map import ROBOT_ROOM
from mapush.extensions.navigate.planners.cost_to_go import CostToGo, Grid, can_branch_on
from mapush.extensions.navigate.planners.followers import FieldFollower
from mapush.extensions.navigate.planners.problem import MARGIN, Problem, solve_fields
from mapush.extensions.navigate.rays import RANGE, look_around, ray_directions
from mqe.tasks.terms import Memory
from mqe.world.state import SceneState

_INSIDE = 0.02  # [m] behind the surface that a ray meets
_FAR = 100.0  # [m] from a place that no ray met anything near


class Explorer(FieldFollower):
    """Descends a cost-to-go that grows with what robots see; N worlds."""

    def __init__(self, problem: Problem, look_ahead: float) -> None:
        """Know the goals and the arena of ``problem``."""
        super().__init__(problem, look_ahead)
        grid = problem.grid
        self._arena = problem.arena
        self._has_moving_goals = problem.maps.has_moving_goals
        self._shapes = problem.shapes
        self._solver = CostToGo(grid, self._goal.device)
        self._lengths = grid.centers.new_tensor(problem.arena)
        half_size = self._lengths / 2
        self._to_wall = (half_size - grid.centers.abs()).amin(dim=-1)  # (H, W) [m]
        self._size = (2 * grid.width, 2 * grid.height)
        self._num_cells = grid.centers.new_tensor(self._size)

    def remember(self, memory: Memory) -> None:
        """Allocate the grids of all worlds."""
        grid = self._grid
        # One place more, for rays that meet nothing.
        num_places = self._size[0] * self._size[1]
        self._is_met = memory.remember("is_met", num_places + 1, dtype=torch.bool)
        self._is_stale = memory.remember("is_stale", start=1.0, dtype=torch.bool)
        self._known = memory.remember("known", 3, grid.height, grid.width, start=None)

    @property
    def known(self) -> Tensor:
        """(N, 3, H, W) distance, cost and cost-to-go around what rays have met."""
        return self._known

    def see(self, state: SceneState) -> None:
        """Mark the places where the robots' rays meet obstacles."""
        directions = ray_directions(state)
        distance = look_around(state, directions, self._shapes, self._arena).unsqueeze(-1)
        ends = state.robot_pos[..., None, :2] + (distance + _INSIDE) * directions
        share = ends / self._lengths + 0.5
        is_met = (distance[..., 0] < RANGE) & ((share > 0.0) & (share < 1.0)).all(dim=-1)
        column, row = (share * self._num_cells).long().unbind(dim=-1)
        place = torch.where(is_met, row * self._size[0] + column, -1).flatten(1)
        place = torch.remainder(place, self._is_met.shape[1])
        is_new = is_met.flatten(1) & ~self._is_met.gather(1, place)
        self._is_met.scatter_(1, place, True)
        self._is_stale |= is_new.any(dim=1)

    def subgoal(self, place: Tensor, index: Tensor) -> Tensor:
        """Return the sub-goals (N, 2) of all worlds."""
        goal = self._goal[index]
        if self._has_moving_goals:
            self._is_stale.fill_(True)
        if can_branch_on(place):
            rows = self._is_stale.nonzero().flatten()
            self._known[rows] = self._solve(self._is_met[rows], goal[rows])
        else:
            is_stale = self._is_stale.view(-1, 1, 1, 1)
            solved = self._solve(self._is_met, goal)
            self._known.copy_(torch.where(is_stale, solved, self._known))
        self._is_stale.fill_(False)
        return self.descend(place, goal, self._known)

    def _solve(self, is_met: Tensor, goal: Tensor) -> Tensor:
        """Return distance, cost and cost-to-go (M, 3, H, W) of M worlds."""
        if len(is_met) == 0:
            return self._known[:0]
        width, height = self._size
        cells = is_met[:, :-1].unflatten(1, (height, width))
        furthest = self._reach + MARGIN + ROBOT_ROOM
        distance = torch.minimum(distance_to_met(cells, self._grid, furthest), self._to_wall)
        return solve_fields(self._solver, distance, goal, self._reach, self._costs)


def distance_to_met(is_met: Tensor, grid: Grid, furthest: float) -> Tensor:
    """Return the distance (M, H, W) [m] from the middle of every cell of ``grid`` to that of the
    nearest True in ``is_met`` (M, 2 H, 2 W), whose cells are half as long.

    It is large if there is none within ``furthest`` [m] along x and y.
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
