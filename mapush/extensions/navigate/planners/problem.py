"""The planning problem: maps, the object's size, and the cost-to-go on a grid."""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from mapush.extensions.navigate.maps.arena_map import ROBOT_ROOM, ArenaMap
from mapush.extensions.navigate.maps.table import MapTable, ObstacleShapes, slots_of
from mapush.extensions.navigate.planners.cost_to_go import CostToGo, Grid
from mqe.world.geometry import rotate_2d

CELL = 0.25  # [m] of the grid
# Maps at a time: what fits into a processor's cache, or bounds the memory on a GPU.
CHUNKS = {"cpu": 8, "cuda": 1024}
MARGIN = 0.05  # [m] beyond the object's furthest corner
BLOCKED = 100.0  # cost of a metre on which the object's corner would be 1 m inside an obstacle
# Where robots push, seen from the object against its direction: an angle to the left [rad], and
# the distance from its furthest corner to a robot's middle [m]; one in the middle, or two abreast.
_PUSHING = ((0.0, 0.35), (0.7, 0.05), (-0.7, 0.05))
# Extra costs of a metre; one in the open costs 1.
NARROW_COST = 3.0  # right beside an obstacle; none where robots have room
NO_ROOM_COST = 3.0  # in a direction, for each place where robots push and have no room
_ROBOT = 0.35  # [m] from a robot's middle to an obstacle, from which it has room


class Problem(NamedTuple):
    """M maps to plan on. The arena's middle is the origin."""

    arena: tuple[float, float]  # [m] length along x and y
    reach: float  # [m] from the object's origin to its furthest corner
    maps: MapTable  # starts, goals and obstacles
    shapes: ObstacleShapes  # of the slots of obstacles
    grid: Grid
    fields: Tensor  # (M, 3, H, W) distance, cost and cost-to-go
    shortest: Tensor  # (M,) [m] length of the shortest path

    def cost_to_go(self, index: Tensor, points: Tensor) -> Tensor:
        """Return the cost-to-go (N,) at points (N, 2) on maps ``index`` (N,)."""
        return self.grid.look_up(self.fields[:, 2], index, points)

    def clearance(self, points: Tensor) -> Tensor:
        """Return the distance (M, P) [m] from points (P, 2) or (M, P, 2) to obstacles and walls."""
        return self.shapes.clearance(points, self.maps.obstacle_pos, self.maps.obstacle_yaw)


@cache
def solve_problem(arena_maps: tuple[ArenaMap, ...], reach: float, device: torch.device) -> Problem:
    """Return the problem on maps with one arena.

    A program with several environments on equal maps solves them once.
    """
    slots = slots_of(arena_maps)
    maps = MapTable.of(arena_maps, slots, device)
    shapes = ObstacleShapes(arena_maps[0].arena, slots, device)
    grid = Grid(shapes.arena, CELL, device)
    solver = CostToGo(grid, device)
    points = grid.centers.flatten(0, 1)
    fields = torch.empty(len(maps.goal), 3, grid.height, grid.width, device=device)
    shortest = []
    # Intermediate values of a map take a hundred times the memory of its fields.
    for index in torch.arange(len(maps.goal), device=device).split(CHUNKS[device.type]):
        part = maps.rows(index)
        clearance = shapes.clearance(points, part.obstacle_pos, part.obstacle_yaw)
        clearance = clearance.unflatten(1, (grid.height, grid.width))
        fields[index] = solve_fields(solver, clearance, part.goal, reach)
        is_blocked = clearance < reach + MARGIN
        lengths = solver.solve(torch.where(is_blocked, BLOCKED, 1.0), part.goal)
        row = torch.arange(len(index), device=device)
        shortest.append(grid.look_up(lengths, row, part.start))
    return Problem(shapes.arena, reach, maps, shapes, grid, fields, torch.cat(shortest))


def solve_fields(solver: CostToGo, clearance: Tensor, goal: Tensor, reach: float) -> Tensor:
    """Return an object's clearance, cost per metre and cost-to-go to ``goal`` (M, 2), (M, 3, H, W),
    on maps with ``clearance`` (M, H, W) [m].
    """
    grid = solver.grid
    free = clearance - reach - MARGIN
    narrow = NARROW_COST * (1.0 - free / ROBOT_ROOM).clamp(0.0, 1.0).square()
    cost = 1.0 + narrow + BLOCKED * (-free).clamp(0.0, 1.0)
    points = grid.centers.flatten(0, 1)
    lacking = lacking_room(grid, clearance, points, solver.directions, reach)
    lacking = lacking.unflatten(2, (grid.height, grid.width))
    value = solver.solve(cost, goal, NO_ROOM_COST * lacking)
    return torch.stack((clearance, cost, value), dim=1)


def lacking_room(
    grid: Grid, clearance: Tensor, points: Tensor, directions: Tensor, reach: float
) -> Tensor:
    """Return the number of pushing positions without room for robots, (M, D, P) from 0 to 3.

    Robots push in ``directions`` (D, 2) or (M, D, 2), the object is at ``points`` (P, 2) or (M, P,
    2), and the maps have ``clearance`` (M, H, W) [m].
    """
    lacking = []
    for angle, beyond in _PUSHING:
        turned = rotate_2d(directions, torch.full_like(directions[..., 0], angle))
        behind = points.unsqueeze(-3) - (reach + beyond) * turned.unsqueeze(-2)
        behind = behind.expand(len(clearance), -1, -1, -1)
        free = grid.sample(clearance.unsqueeze(1), behind.flatten(1, 2))[:, 0]
        free = free.unflatten(1, behind.shape[1:3])
        lacking.append((1.0 - free / _ROBOT).clamp(0.0, 1.0))
    # A direction in which two robots have no room is worse than one in which a third has some.
    return torch.stack(lacking).sum(dim=0)
