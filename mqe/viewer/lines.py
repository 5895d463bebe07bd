"""Drawings in a scene: velocity commands as arrows, the object's path and its planned path."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import mujoco
import numpy as np

_LENGTH = 1.2  # [m] per m/s
_WIDTH = 0.02  # [m] of a line
_HEIGHT = 0.12  # [m] of an arrow's start above the trunk's origin
_SHORTEST = 1e-3  # [m] least drawn length
_SPEED_COLOR = (0.1, 0.7, 0.2, 1.0)
_TURN_COLOR = (0.9, 0.2, 0.6, 1.0)
_TRAIL_COLOR = (0.55, 0.33, 0.10, 1.0)
_WAY_COLOR = (0.15, 0.35, 0.75, 1.0)
_TRAIL_HEIGHT = 0.03  # [m] above the floor
_MOST_SEGMENTS = 200  # of a trail

Color = tuple[float, float, float, float]


class Line(NamedTuple):
    """A line's start and end [m], its colour, and its shape."""

    start: np.ndarray
    end: np.ndarray
    color: Color
    kind: mujoco.mjtGeom = mujoco.mjtGeom.mjGEOM_ARROW

    def draw(self, geom: mujoco.MjvGeom) -> mujoco.MjvGeom:
        """Turn ``geom`` into this line and return it."""
        color = np.array(self.color, np.float32)
        mujoco.mjv_initGeom(geom, self.kind, np.zeros(3), np.zeros(3), np.zeros(9), color)
        mujoco.mjv_connector(geom, self.kind, _WIDTH, self.start, self.end)
        return geom


def command_arrows(pos: np.ndarray, xmat: np.ndarray, command: Sequence[float]) -> list[Line]:
    """Return an arrow along a commanded velocity, and an upright one for the yaw rate.

    ``pos`` (3,) [m] and ``xmat`` (9,) are the trunk's. ``command``: vx, vy [m/s] and yaw rate
    [rad/s].
    """
    start = pos + np.array([0.0, 0.0, _HEIGHT])
    yaw = math.atan2(xmat[3], xmat[0])
    cos = math.cos(yaw)
    sin = math.sin(yaw)
    forward, left, turning = (_LENGTH * value for value in command)
    drive = np.array([cos * forward - sin * left, sin * forward + cos * left, 0.0])
    arrows = [
        Line(start, start + drive, _SPEED_COLOR),
        Line(start, start + np.array([0.0, 0.0, turning]), _TURN_COLOR),
    ]
    return [arrow for arrow in arrows if _is_visible(arrow)]


def trail(points: Sequence[np.ndarray]) -> list[Line]:
    """Return the object's path over the floor through ``points`` (3,) [m]."""
    stride = 1 + len(points) // _MOST_SEGMENTS
    return _on_floor(points[::stride], _TRAIL_COLOR)


def planned_way(points: Sequence[Sequence[float] | np.ndarray]) -> list[Line]:
    """Return an object's planned path through ``points`` (x, y, ...) [m]."""
    return _on_floor(points, _WAY_COLOR)


def _on_floor(points: Sequence[Sequence[float] | np.ndarray], color: Color) -> list[Line]:
    raised = [np.array([point[0], point[1], _TRAIL_HEIGHT]) for point in points]
    lines = [
        Line(start, end, color, mujoco.mjtGeom.mjGEOM_CAPSULE) for start, end in pairwise(raised)
    ]
    return [line for line in lines if _is_visible(line)]


def _is_visible(line: Line) -> bool:
    return float(np.linalg.norm(line.end - line.start)) > _SHORTEST
