"""The cost-to-go field: exact lengths, ways around walls, and the lookup between cells."""

from __future__ import annotations

import heapq
import math

import pytest
import torch
from torch import Tensor, tensor

from mapush.extensions.navigate.planners import cost_to_go
from mapush.extensions.navigate.planners.cost_to_go import CostToGo, Grid

STEPS = [
    (a * sign_x, b * sign_y)
    for a, b in ((1, 0), (0, 1), (1, 1), (2, 1), (1, 2))
    for sign_x in (1, -1)
    for sign_y in (1, -1)
]


def dijkstra(grid: Grid, cost: Tensor, goal: tuple[float, float]) -> Tensor:
    """Return the cost-to-go (H, W) by the textbook."""
    height, width = cost.shape
    cell = grid.cell[0]
    value = torch.full_like(cost, math.inf)
    heap = []
    for y in range(height):
        for x in range(width):
            distance = math.dist(grid.centers[y, x].tolist(), goal)
            if distance < 1.5 * cell:
                heap.append((distance * float(cost[y, x]), y, x))
    while heap:
        to_go, y, x = heapq.heappop(heap)
        if to_go >= value[y, x]:
            continue
        value[y, x] = to_go
        for dx, dy in STEPS:
            there = (y + dy, x + dx)
            if 0 <= there[0] < height and 0 <= there[1] < width:
                mean = 0.5 * float(cost[y, x] + cost[there])
                heapq.heappush(heap, (to_go + mean * cell * math.hypot(dx, dy), *there))
    return value


def test_sweeps_find_what_dijkstra_finds(monkeypatch):
    grid = Grid((6.0, 4.0), 0.25)
    torch.manual_seed(0)
    coarse = torch.rand(1, 1, 4, 6)
    size = (grid.height, grid.width)
    cost = 1.0 + 3.0 * torch.nn.functional.interpolate(coarse, size, mode="bilinear")[:, 0]
    cost[:, :12, 6:8] = 100.0
    cost[:, 4:, 15:17] = 100.0
    goal = (2.3, 0.9)
    few = CostToGo(grid).solve(cost, tensor([goal]))
    monkeypatch.setattr(cost_to_go, "NUM_ROUNDS", 12)
    value = CostToGo(grid).solve(cost, tensor([goal]))
    torch.testing.assert_close(value[0], dijkstra(grid, cost[0], goal), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(few, value, rtol=0.02, atol=0.0)


def test_a_free_arena_has_straight_ways():
    grid = Grid((10.0, 8.0), 0.25)
    goal = tensor([[3.0, 1.0], [-3.0, -2.0]])
    value = CostToGo(grid).solve(torch.ones(2, grid.height, grid.width), goal)
    distance = (grid.centers - goal.view(2, 1, 1, 2)).norm(dim=-1)
    # Sixteen directions: at most 2.8 % longer than the straight way.
    assert bool((value > 0.999 * distance).all())
    assert bool((value < 1.028 * distance + 0.05).all())


def test_maps_are_looked_up_between_cells():
    grid = Grid((10.0, 8.0), 0.5)
    plane = 2.0 * grid.centers[..., 0] - grid.centers[..., 1]
    table = torch.stack((plane, plane + 1.0))
    points = tensor([[0.13, -1.7], [2.0, 3.1], [4.9, 0.0]])
    index = tensor([0, 1, 1])
    values = grid.look_up(table, index, points)
    assert values[:2].tolist() == pytest.approx([1.96, 1.9], abs=1e-4)
    sampled = grid.sample(table[index].unsqueeze(1), points.unsqueeze(1))[:, 0, 0]
    torch.testing.assert_close(values, sampled)
