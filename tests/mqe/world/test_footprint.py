"""Boxes from the outline of a mesh."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mqe.config import ConfigError
from mqe.world.footprint import boxes_of_mesh, largest_rectangle
from mqe.world.shapes import NUM_BOXES, read_shapes

CORNERS = [(x, y, z) for x in (0.0, 1.0) for y in (0.0, 1.0) for z in (0.0, 1.0)]
FACES = [(1, 2, 4, 3), (5, 7, 8, 6), (1, 5, 6, 2), (3, 4, 8, 7), (1, 3, 7, 5), (2, 6, 8, 4)]


def write_mesh(path: Path, boxes: list[tuple[float, float, float, float]]) -> Path:
    """Write boxes half a metre high, each by its lower corner x, y and its lengths, as OBJ."""
    lines = []
    for k, (x, y, x_length, y_length) in enumerate(boxes):
        corners = np.array(CORNERS) * (x_length, y_length, 0.5) + (x, y, 0.0)
        lines += [f"v {a} {b} {c}" for a, b, c in corners]
        lines += ["f " + " ".join(str(8 * k + corner) for corner in face) for face in FACES]
    path.write_text("\n".join(lines))
    return path


def test_the_boxes_of_a_corner_are_found_wherever_it_lies(tmp_path):
    mesh = write_mesh(tmp_path / "corner.obj", [(3.0, -1.0, 1.2, 0.4), (3.0, -0.6, 0.4, 0.8)])
    boxes = boxes_of_mesh(mesh, NUM_BOXES)
    assert np.array(boxes) == pytest.approx(np.array([[0, 0, 0.4, 1.2], [0.6, -0.4, 0.8, 0.4]]))


def test_a_shape_of_a_file_may_be_a_mesh_beside_it(tmp_path):
    write_mesh(tmp_path / "bar.obj", [(0.0, 0.0, 1.0, 0.4)])
    shape = {"name": "bar", "mass": 6.0, "friction": 0.5, "mesh": "bar.obj"}
    (tmp_path / "shapes.json").write_text(json.dumps([shape]))
    (read,) = read_shapes(str(tmp_path / "shapes.json"))
    assert read.mass == pytest.approx(6.0)
    assert [geom.size for geom in read.geoms] == [pytest.approx((1.0, 0.4, 0.5))]


def test_the_largest_rectangle_by_hand():
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]], dtype=bool)
    assert largest_rectangle(mask) == (1, 3, 1, 4)
    assert largest_rectangle(np.zeros((2, 3), dtype=bool)) == (0, 0, 0, 0)
    assert largest_rectangle(np.ones((2, 3), dtype=bool)) == (0, 2, 0, 3)


def test_meshes_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no mesh that can be read"):
        boxes_of_mesh(tmp_path / "none.stl", NUM_BOXES)
    large = write_mesh(tmp_path / "large.obj", [(0.0, 0.0, 1000.0, 400.0)])
    with pytest.raises(ConfigError, match="is 1000 by 400 m; meshes are in metres, up to 8 m"):
        boxes_of_mesh(large, NUM_BOXES)
    stairs = [(0.1 * k, 0.1 * k, 0.1, 0.1) for k in range(12)]
    with pytest.raises(ConfigError, match="6 boxes along x and y cover 0.50 of the outline"):
        boxes_of_mesh(write_mesh(tmp_path / "stairs.obj", stairs), NUM_BOXES)
