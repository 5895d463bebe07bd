"""Boxes that cover the outline of a mesh, seen from above."""

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

Mask = NDArray[np.bool_]


def boxes_of_mesh(path: Path, most: int) -> list[list[float]]:
    """Return at most ``most`` boxes that do not overlap and cover the outline of an STL or OBJ
    file in metres, z up; each is the x and y of its centre and its lengths along x and y [m].

    The largest comes first, and its centre is the origin. Raises ConfigError for a file that is no
    mesh, that is too large, or whose outline takes more boxes.
    """
    corners, faces = _corners_and_faces(path)
    outline, start = _outline(corners, faces, path)
    rest = outline.copy()
    boxes = []
    while len(boxes) < most and rest.sum() > (1.0 - ENOUGH) * outline.sum():
        left, right, low, high = largest_rectangle(rest)
        if min(right - left, high - low) < LEAST_SIDE:
            break
        rest[left:right, low:high] = False
        boxes.append((left, right, low, high))
    cover = 1.0 - rest.sum() / outline.sum()
    if cover < LEAST_COVER:
        raise ConfigError(
            f"task.shapes: {len(boxes)} boxes along x and y cover {cover:.2f} of the outline of "
            f"{path}, seen from above, less than {LEAST_COVER}; turn the mesh so that its sides "
            "lie along x and y, or write boxes of your own"
        )
    left, right, low, high = boxes[0]
    origin = start + 0.5 * CELL * np.array([left + right, low + high])
    found = []
    for left, right, low, high in boxes:
        center = start + 0.5 * CELL * np.array([left + right, low + high]) - origin
        lengths = CELL * (right - left), CELL * (high - low)
        found.append(np.round([*center, *lengths], 6).tolist())
    return found


def largest_rectangle(mask: Mask) -> tuple[int, int, int, int]:
    """Return the bounds (first and end row, first and end column) of the largest rectangle of True
    in ``mask`` (X, Y); all 0 if there is none.
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
    """Return the corners (V, 3) [m] and faces (F, 3) of a mesh file, as MuJoCo reads it."""
    spec = mujoco.MjSpec()
    mesh = spec.add_mesh(name="mesh", file=str(path.resolve()))
    mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="mesh")
    try:
        model = spec.compile()
    except ValueError as error:
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
    """Return the cells (X, Y) that lie below or above a face, and the corner (2,) [m] of the
    first.
    """
    plane = corners[:, :2]
    start = plane.min(axis=0)
    size = np.maximum(np.round((plane.max(axis=0) - start) / CELL).astype(int), 1)
    if size.max() > _MOST_CELLS:
        raise ConfigError(
            f"task.shapes: {path} is {CELL * size[0]:g} by {CELL * size[1]:g} m; meshes are in "
            f"metres, up to {CELL * _MOST_CELLS:g} m"
        )
    mask = np.zeros(size, dtype=bool)
    for triangle in plane[faces]:
        low = np.floor((triangle.min(axis=0) - start) / CELL).astype(int).clip(0)
        high = np.ceil((triangle.max(axis=0) - start) / CELL).astype(int)
        x, y = (start[k] + CELL * (np.arange(low[k], min(high[k], size[k])) + 0.5) for k in (0, 1))
        points = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1)
        sides = [_side(triangle[k], triangle[(k + 1) % 3], points) for k in range(3)]
        is_inside = np.minimum.reduce(sides) >= 0.0
        is_inside |= np.maximum.reduce(sides) <= 0.0
        mask[low[0] : low[0] + len(x), low[1] : low[1] + len(y)] |= is_inside
    return mask, start


def _side(start: NDArray[Any], end: NDArray[Any], points: NDArray[Any]) -> NDArray[Any]:
    """Return twice the signed area (...) of the triangles of an edge with ``points`` (..., 2)."""
    along = end - start
    offset = points - start
    return np.asarray(along[0] * offset[..., 1] - along[1] * offset[..., 0])
