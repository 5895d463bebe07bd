"""Boxes for a mesh's outline, seen from above."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from mqe.config import ConfigError

CELL = 0.02  # [m] side of a square of the outline
LEAST_SIDE = 2  # cells of a box's shorter side
ENOUGH = 0.98  # share of the outline at which no further box is taken
LEAST_COVER = 0.85  # share of the outline that boxes have to cover
_MOST_CELLS = 400  # along a side
_LEAST_CELLS = 2  # along the longer side
_LARGEST_FILE = 64 * 2**20  # bytes
_ROWS_AT_ONCE = 2_000_000  # rows of cells under triangles that are filled together
_ROUNDING = 1e-9  # cells by which a middle may lie outside

Mask = NDArray[np.bool_]


def boxes_of_mesh(path: Path, max_boxes: int) -> list[list[float]]:
    """Return at most ``max_boxes`` disjoint boxes over the outline of an STL or OBJ file.

    The file is in metres, z up. A box is its centre's x and y and its lengths along x and y [m].
    The largest comes first, with its centre at the origin. Raise ConfigError for an invalid or too
    large file, and for an outline of more boxes.
    """
    corners, faces = _corners_and_faces(path)
    outline, start = _outline(corners, faces, path)
    rest = outline.copy()
    boxes = []
    while len(boxes) < max_boxes and rest.sum() > (1.0 - ENOUGH) * outline.sum():
        left, right, low, high = largest_rectangle(rest)
        if min(right - left, high - low) < LEAST_SIDE:
            break
        rest[left:right, low:high] = False
        boxes.append((left, right, low, high))
    cover = 1.0 - rest.sum() / max(outline.sum(), 1)
    if not boxes or cover < LEAST_COVER:
        raise ConfigError(
            f"task.shapes: {len(boxes)} boxes along x and y cover {cover:.2f} of the outline of "
            f"{path}, seen from above, less than {LEAST_COVER}; turn the mesh so that its sides "
            "lie along x and y, or write boxes of your own"
        )
    left, right, low, high = boxes[0]
    origin = start + 0.5 * CELL * np.array([left + right, low + high])
    centred_boxes = []
    for left, right, low, high in boxes:
        center = start + 0.5 * CELL * np.array([left + right, low + high]) - origin
        lengths = CELL * (right - left), CELL * (high - low)
        centred_boxes.append(np.round([*center, *lengths], 6).tolist())
    return centred_boxes


def largest_rectangle(mask: Mask) -> tuple[int, int, int, int]:
    """Return the bounds of the largest rectangle with only True in ``mask`` (X, Y).

    They are first and end row, first and end column, all 0 without a rectangle.
    """
    best = (0, 0, 0, 0)
    heights = np.zeros(mask.shape[1] + 1, dtype=int)  # of True above each column; the last is 0
    for row, cells in enumerate(mask):
        heights[:-1] = np.where(cells, heights[:-1] + 1, 0)
        rising: list[tuple[int, int]] = []  # first column and height of open rectangles
        for column, height in enumerate(heights.tolist()):
            first = column
            while rising and rising[-1][1] >= height:
                first, tall = rising.pop()
                if tall * (column - first) > (best[1] - best[0]) * (best[3] - best[2]):
                    best = (row + 1 - tall, row + 1, first, column)
            rising.append((first, height))
    return best


def _corners_and_faces(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a mesh file's corners (V, 3) [m] and faces (F, 3), as MuJoCo reads it."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"task.shapes: {path} is no file but a folder, pipe or device")
    if path.is_file() and path.stat().st_size > _LARGEST_FILE:
        raise ConfigError(
            f"task.shapes: {path} is larger than {_LARGEST_FILE >> 20} MiB; simplify the mesh"
        )
    spec = mujoco.MjSpec()
    mesh = spec.add_mesh(name="mesh", file=str(path.resolve()))
    mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="mesh")
    try:
        model = spec.compile()
    except (ValueError, mujoco.FatalError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"task.shapes: {path} is no mesh that can be read ({reason}); give an STL or OBJ file"
        ) from None
    # The compiler moves a mesh to its centre and turns it to its axes; a geom undoes both.
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, model.mesh_quat[0])
    corners = model.mesh_vert @ turn.reshape(3, 3).T + model.mesh_pos[0]
    return corners, model.mesh_face


def _outline(corners: NDArray[Any], faces: NDArray[Any], path: Path) -> tuple[Mask, NDArray[Any]]:
    """Return the cells (X, Y) with a face above or below their middle, and the first cell's corner
    (2,) [m].
    """
    plane = corners[:, :2].astype(np.float64)
    start = plane.min(axis=0)
    cells = (plane.max(axis=0) - start) / CELL
    if not _LEAST_CELLS <= cells.max() <= _MOST_CELLS + 0.5:
        raise ConfigError(
            f"task.shapes: {path} is {CELL * cells[0]:.4g} by {CELL * cells[1]:.4g} m; meshes are "
            f"in metres, from {CELL * _LEAST_CELLS:g} up to {CELL * _MOST_CELLS:g} m"
        )
    size = np.maximum(np.round(cells).astype(int), 1)
    starts = np.zeros((size[0], size[1] + 1), dtype=int)
    triangles = (plane[faces] - start) / CELL - 0.5  # in cells; 0 is the first cell's middle
    rows_of_each = max(1, _ROWS_AT_ONCE // int(size[0]))
    for first in range(0, len(triangles), rows_of_each):
        _add_triangles(starts, triangles[first : first + rows_of_each])
    return starts[:, :-1].cumsum(axis=1) > 0, start


def _add_triangles(starts: NDArray[Any], triangles: NDArray[Any]) -> None:
    """Add the cells of ``triangles`` (F, 3, 2) to ``starts`` (X, Y + 1), in place.

    A triangle covers one run of cells in a row: +1 at the run's first cell, -1 behind its last.
    """
    num_rows = starts.shape[0]
    num_columns = starts.shape[1] - 1
    x = triangles[..., 0]
    low = np.ceil(x.min(axis=1) - _ROUNDING).clip(0, num_rows).astype(int)
    high = np.floor(x.max(axis=1) + _ROUNDING).clip(-1, num_rows - 1).astype(int)
    counts = np.maximum(high - low + 1, 0)
    owner = np.repeat(np.arange(len(triangles)), counts)
    row = np.arange(len(owner)) - np.repeat(counts.cumsum() - counts, counts) + low[owner]

    # Ends of each row's run: where the row crosses the triangle's edges.
    begin = np.full(len(owner), np.inf)
    end = np.full(len(owner), -np.inf)
    for k in range(3):
        x0, y0 = triangles[owner, k].T
        x1, y1 = triangles[owner, (k + 1) % 3].T
        along = x1 - x0
        is_level = np.abs(along) <= _ROUNDING
        share = ((row - x0) / np.where(is_level, 1.0, along)).clip(0.0, 1.0)
        crossing = y0 + share * (y1 - y0)
        is_crossed = (np.minimum(x0, x1) <= row + _ROUNDING) & (
            np.maximum(x0, x1) >= row - _ROUNDING
        )
        for y in (np.where(is_level, y0, crossing), np.where(is_level, y1, crossing)):
            begin = np.where(is_crossed, np.minimum(begin, y), begin)
            end = np.where(is_crossed, np.maximum(end, y), end)
    first = np.ceil(begin - _ROUNDING).clip(0, num_columns)
    behind = (np.floor(end + _ROUNDING) + 1).clip(0, num_columns)
    is_run = behind > first
    np.add.at(starts, (row[is_run], first[is_run].astype(int)), 1)
    np.add.at(starts, (row[is_run], behind[is_run].astype(int)), -1)
