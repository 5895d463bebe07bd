"""Cost-to-go fields on an arena's grid, batched.

A path's cost is its length, weighed by the cost per metre in its cells. Sweeps find the cheapest
path: on every straight line of cells, in 16 directions, one running minimum lets each cell use all
cells ahead. A few rounds of sweeps find paths with a few turns. The number of operations does not
depend on the number of worlds.

N worlds, H rows of cells along y and W columns along x, P points, C fields, L maps.
"""

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

NUM_ROUNDS = 6  # of sweeps in all directions; a maze of ten turns needs five
# Steps from cell to cell along x and y; each line is swept both ways.
_STEPS = ((1, 0), (0, 1), (1, 1), (1, -1), (2, 1), (2, -1), (1, 2), (1, -2))
_FAR = 1e6  # cost-to-go of a cell that no sweep has reached


class Grid:
    """Cells of an arena around the origin."""

    def __init__(
        self, arena: tuple[float, float], cell: float, device: torch.device | str = "cpu"
    ) -> None:
        """Divide ``arena``, its length along x and y [m], into square cells of about ``cell``
        [m].
        """
        self.arena = arena
        self.width = max(2, round(arena[0] / cell))
        self.height = max(2, round(arena[1] / cell))
        self.cell = (arena[0] / self.width, arena[1] / self.height)
        x = (torch.arange(self.width, device=device) + 0.5) * self.cell[0] - arena[0] / 2
        y = (torch.arange(self.height, device=device) + 0.5) * self.cell[1] - arena[1] / 2
        grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
        self.centers = grid.float()  # (H, W, 2) [m]
        self._scale = torch.tensor([2.0 / arena[0], 2.0 / arena[1]], device=device)
        self._last = torch.tensor([self.width - 1.0, self.height - 1.0], device=device)

    def sample(self, maps: Tensor, points: Tensor) -> Tensor:
        """Return fields ``maps`` (N, C, H, W) at points (N, P, 2) [m], (N, C, P).

        Values between cell centres are interpolated. The border's values hold outside.
        """
        places = (points * self._scale).unsqueeze(1)
        values = torch.nn.functional.grid_sample(
            maps, places, mode="bilinear", padding_mode="border", align_corners=False
        )
        return values[:, :, 0]

    def look_up(self, table: Tensor, index: Tensor, points: Tensor) -> Tensor:
        """Return the values (N,) in rows ``index`` (N,) of ``table`` (L, H, W) at points (N, 2)
        [m], interpolated as in ``sample``.
        """
        position = ((points * self._scale + 1.0) * 0.5 * (self._last + 1.0) - 0.5).clamp(min=0.0)
        position = torch.minimum(position, self._last)
        low = torch.minimum(position.floor(), self._last - 1.0)
        x, y = (position - low).unbind(dim=1)
        column, row = low.to(torch.int64).unbind(dim=1)
        first = (index * self.height + row) * self.width + column
        flat = table.flatten()
        lower = torch.lerp(flat[first], flat[first + 1], x)
        upper = torch.lerp(flat[first + self.width], flat[first + self.width + 1], x)
        return torch.lerp(lower, upper, y)


class _Lines(NamedTuple):
    """A grid's cells as straight lines in one direction."""

    cells: Tensor  # (M, L) int64: cell m of line l; one more than the last where a line is shorter
    places: Tensor  # (H W,) int64 where each cell is among the M L
    length: float  # [m] of a step

    def of(self, values: Tensor) -> Tensor:
        """Return ``values`` (N, H W + 1) along the lines, (N, M, L). M lines, L cells per line."""
        return values.index_select(1, self.cells.flatten()).unflatten(1, self.cells.shape)


class CostToGo:
    """Solves for every cell's cost-to-go."""

    def __init__(self, grid: Grid, device: torch.device | str = "cpu") -> None:
        """Prepare the lines in ``grid``."""
        self.grid = grid
        self._families = [_lines(grid, step, device) for step in _STEPS]
        steps = torch.tensor(_STEPS, device=device) * torch.tensor(grid.cell, device=device)
        ways = steps / steps.norm(dim=-1, keepdim=True)
        # (16, 2) unit vectors of the directions: each line's, then its opposite.
        self.directions = torch.stack((ways, -ways), dim=1).flatten(0, 1)

    def solve(self, cost: Tensor, goal: Tensor, directed: Tensor | None = None) -> Tensor:
        """Return the cost-to-go (N, H, W) to ``goal`` (N, 2) [m] at ``cost`` (N, H, W) per metre.

        ``directed`` (N, 16, H, W) is the extra cost per metre in each of the ``directions``.
        """
        if directed is None:
            directed = cost.new_zeros(1, 2 * len(_STEPS), 1, 1)
        # Around the goal: the straight way.
        offset = self.grid.centers.flatten(0, 1) - goal.unsqueeze(1)
        distance = offset.norm(dim=-1)
        near = 1.5 * max(self.grid.cell)
        value = torch.where(distance < near, distance * cost.flatten(1), _FAR)
        costs = (cost.unsqueeze(1) + directed).flatten(2)
        sums = []
        for k, lines in enumerate(self._families):
            there = _cost_along(lines, costs[:, 2 * k])
            back = _cost_along(lines, costs[:, 2 * k + 1])
            sums.append((there, back))
        pad = value.new_full((len(cost), 1), _FAR)
        for _ in range(NUM_ROUNDS):
            before = value
            for lines, (there, back) in zip(self._families, sums, strict=True):
                rows = lines.of(torch.cat((value, pad), dim=1))
                ahead = (rows + there).flip(1).cummin(dim=1).values.flip(1) - there
                behind = (rows - back).cummin(dim=1).values + back
                best = torch.minimum(ahead, behind)
                value = torch.minimum(value, best.flatten(1).index_select(1, lines.places))
            if torch.allclose(before, value, rtol=1e-3):
                break
        return value.unflatten(1, cost.shape[1:])


def _cost_along(lines: _Lines, cost: Tensor) -> Tensor:
    """Return the cost (N, M, L) from the first cell of each line to every other, at ``cost`` (N, H
    W) per metre. M lines, L cells per line.
    """
    pad = cost.new_zeros(len(cost), 1)
    rows = lines.of(torch.cat((cost, pad), dim=1))
    steps = 0.5 * lines.length * (rows[:, 1:] + rows[:, :-1])
    return torch.nn.functional.pad(steps.cumsum(dim=1), (0, 0, 1, 0))


def _lines(grid: Grid, step: tuple[int, int], device: torch.device | str) -> _Lines:
    """Return lines of cells in steps of ``step`` (columns, rows)."""
    dx, dy = step
    width = grid.width
    height = grid.height
    lines: list[Tensor] = []
    for y, x in itertools.product(range(height), range(width)):
        if 0 <= x - dx < width and 0 <= y - dy < height:
            continue  # not the first cell of its line
        line = []
        while 0 <= x < width and 0 <= y < height:
            line.append(y * width + x)
            x += dx
            y += dy
        lines.append(torch.tensor(line))
    cells = pad_sequence(lines, padding_value=width * height)
    places = cells.flatten().argsort()[: width * height]
    length = math.hypot(dx * grid.cell[0], dy * grid.cell[1])
    return _Lines(cells.to(device), places.to(device), length)
