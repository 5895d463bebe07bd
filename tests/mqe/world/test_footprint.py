"""Boxes from the outline of a mesh."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from mqe.config import ConfigError
from mqe.world.footprint import _add_triangles, boxes_of_mesh, largest_rectangle
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
    with pytest.raises(ConfigError, match="is 1000 by 400 m; .* from 0.04 up to 8 m"):
        boxes_of_mesh(large, NUM_BOXES)
    tiny = write_mesh(tmp_path / "tiny.obj", [(0.0, 0.0, 1e-6, 1e-6)])
    with pytest.raises(ConfigError, match="task.shapes: .*tiny.obj"):
        boxes_of_mesh(tiny, NUM_BOXES)
    small = write_mesh(tmp_path / "small.obj", [(0.0, 0.0, 0.03, 0.02)])
    with pytest.raises(ConfigError, match="is 0.03 by 0.02 m; meshes are in metres, from 0.04"):
        boxes_of_mesh(small, NUM_BOXES)
    stairs = [(0.1 * k, 0.1 * k, 0.1, 0.1) for k in range(12)]
    with pytest.raises(ConfigError, match="6 boxes along x and y cover 0.50 of the outline"):
        boxes_of_mesh(write_mesh(tmp_path / "stairs.obj", stairs), NUM_BOXES)


@pytest.mark.parametrize("suffix", [".stl", ".obj"])
def test_what_is_no_file_is_refused_at_once(tmp_path, suffix):
    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    device = tmp_path / f"device{suffix}"
    device.symlink_to("/dev/zero")
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    for path in (pipe, device, folder):
        with pytest.raises(ConfigError, match="is no file but a folder, pipe or device"):
            boxes_of_mesh(path, NUM_BOXES)
    sparse = tmp_path / f"sparse{suffix}"
    with sparse.open("wb") as file:
        file.truncate(20 * 2**30)
    with pytest.raises(ConfigError, match="is larger than 64 MiB"):
        boxes_of_mesh(sparse, NUM_BOXES)


@pytest.mark.parametrize("number", ["nan", "inf", "1e39"])
def test_corners_that_are_no_numbers_are_refused(tmp_path, number):
    path = write_mesh(tmp_path / "odd.obj", [(0.0, 0.0, 1.0, 0.4)])
    path.write_text(f"v {number} 0.0 0.0\n" + path.read_text())
    with pytest.raises(ConfigError, match="task.shapes: .*odd.obj"):
        boxes_of_mesh(path, NUM_BOXES)


def test_the_cells_of_a_triangle_by_hand(tmp_path):
    """Cell middles 0.5, 1.5, ... on a 4 by 3 grid. The triangle has corners (0, 0), (4, 0) and (0,
    3).
    """
    starts = np.zeros((4, 4), dtype=int)
    corners = np.array([[[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]]]) - 0.5
    for order in itertools.permutations(range(3)):
        starts[:] = 0
        _add_triangles(starts, corners[:, order])
        cells = starts[:, :-1].cumsum(axis=1).tolist()
        # At x = 0.5 the triangle ends at y = 2.625, then at 1.875, 1.125 and 0.375.
        assert cells == [[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_overlapping_and_upright_faces_do_no_harm():
    starts = np.zeros((2, 3), dtype=int)
    upright = [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]  # seen from above, a line through two middles
    whole = [[-0.5, -0.5], [1.5, -0.5], [1.5, 3.5]]
    _add_triangles(starts, np.array([upright, whole, whole]))
    assert (starts[:, :-1].cumsum(axis=1) > 0).tolist() == [[True, False], [True, True]]


def test_a_mesh_of_a_hundred_thousand_faces_takes_a_moment(tmp_path):
    """A wavy square metre: one box, as of two faces."""
    number = 224
    steps = np.linspace(0.0, 1.0, number)
    lines = [f"v {x} {y} {0.1 * np.sin(9.0 * x)}" for x in steps for y in steps]
    for i in range(1, number):
        for j in range(1, number):
            a = (i - 1) * number + j
            lines += [f"f {a} {a + 1} {a + number}", f"f {a + 1} {a + number + 1} {a + number}"]
    path = tmp_path / "wavy.obj"
    path.write_text("\n".join(lines))
    began = time.process_time()
    assert boxes_of_mesh(path, NUM_BOXES) == [[0.0, 0.0, 1.0, 1.0]]
    assert time.process_time() - began < 10.0
