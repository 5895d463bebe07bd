"""Velocity commands as arrows in a scene."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import numpy as np

_LENGTH = 1.2  # [m] per m/s
_WIDTH = 0.02  # [m] of an arrow
_HEIGHT = 0.12  # [m] of an arrow's start above the trunk's origin
_SHORTEST = 0.02  # [m] that is drawn
_SPEED_COLOR = (0.1, 0.7, 0.2, 1.0)
_TURN_COLOR = (0.9, 0.2, 0.6, 1.0)


class Arrow(NamedTuple):
    """An arrow's start and end [m], and its colour."""

    start: np.ndarray
    end: np.ndarray
    color: tuple[float, float, float, float]

    def draw(self, geom: mujoco.MjvGeom) -> mujoco.MjvGeom:
        """Turn ``geom`` into this arrow and return it."""
        kind = mujoco.mjtGeom.mjGEOM_ARROW
        mujoco.mjv_initGeom(
            geom, kind, np.zeros(3), np.zeros(3), np.zeros(9), np.array(self.color, np.float32)
        )
        mujoco.mjv_connector(geom, kind, _WIDTH, self.start, self.end)
        return geom


def command_arrows(pos: np.ndarray, xmat: np.ndarray, command: Sequence[float]) -> list[Arrow]:
    """Return an arrow along a commanded velocity, and an upright one for the yaw rate.

    ``pos`` (3,) [m] and ``xmat`` (9,) are the trunk's; ``command`` is vx, vy [m/s] and yaw rate
    [rad/s].
    """
    start = pos + np.array([0.0, 0.0, _HEIGHT])
    yaw = math.atan2(xmat[3], xmat[0])
    cos = math.cos(yaw)
    sin = math.sin(yaw)
    forward, left, turning = (_LENGTH * value for value in command)
    drive = np.array([cos * forward - sin * left, sin * forward + cos * left, 0.0])
    vectors = ((drive, _SPEED_COLOR), (np.array([0.0, 0.0, turning]), _TURN_COLOR))
    return [
        Arrow(start, start + vector, color)
        for vector, color in vectors
        if np.linalg.norm(vector) > _SHORTEST
    ]
