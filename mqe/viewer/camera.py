"""Cameras for films and pictures: robots, object and goal stay in view."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from mqe.viewer.recording import ShownState
from mqe.world.scene import Scene

Array = NDArray[np.float64]

SMOOTHED_S = 1.0  # [s] of a film, over which the camera's position is averaged
MARGIN = 1.1  # [m] visible around the origins of robots and goal, with the goal's ring
NEAREST = 3.0  # [m] least distance from the scene


class Angle(NamedTuple):
    """A camera's direction of view on a world."""

    azimuth: float = 125.0  # [deg]
    elevation: float = -32.0  # [deg] from the horizon; down is negative


CAMERAS = {  # by name
    "follow": Angle(),
    "low": Angle(125.0, -14.0),
    "side": Angle(90.0, -20.0),
    "top": Angle(90.0, -89.0),
}


def cameras(
    scene: Scene,
    states: Sequence[ShownState],
    rate: float,
    aspect: float,
    angle: Angle = CAMERAS["follow"],
) -> list[mujoco.MjvCamera]:
    """Return a camera for each state of an episode with ``rate`` pictures a second [Hz].

    They move smoothly, at one distance, with all bodies in every picture. ``aspect`` is a picture's
    width over its height.
    """
    points = np.stack([state.points(scene) for state in states])
    axes = camera_axes(angle.azimuth, angle.elevation)
    half_size = half_picture(scene.model, aspect)
    reach = margins(scene)
    centers = _smoothed((points.min(axis=1) + points.max(axis=1)) / 2, round(SMOOTHED_S * rate))
    pairs = zip(points, centers, strict=True)
    distance = max(fit_distance(at, center, axes, half_size, reach) for at, center in pairs)
    made = []
    for center in centers:
        camera = mujoco.MjvCamera()
        camera.azimuth = angle.azimuth
        camera.elevation = angle.elevation
        camera.distance = distance
        camera.lookat[:] = center
        made.append(camera)
    return made


def half_picture(model: mujoco.MjModel, aspect: float) -> Array:
    """Return half a picture's width and height (2,) at a distance of 1."""
    half_height = math.tan(math.radians(model.vis.global_.fovy) / 2)
    return np.array([aspect * half_height, half_height])


def margins(scene: Scene) -> Array:
    """Return the visible radius (P,) [m] around each robot, the object and the goal."""
    if scene.object is None:
        return np.full(scene.num_robots, MARGIN)
    model = scene.model
    geoms = scene.object_geoms
    reach = np.linalg.norm(model.geom_pos[geoms], axis=1) + model.geom_rbound[geoms]
    return np.array([MARGIN] * scene.num_robots + [max(MARGIN, float(reach.max())), MARGIN])


def camera_axes(azimuth: float, elevation: float) -> Array:
    """Return unit vectors (3, 3) to the right, up and ahead of a camera [deg]."""
    turn = math.radians(azimuth)
    tilt = math.radians(elevation)
    right = np.array([math.sin(turn), -math.cos(turn), 0.0])
    ahead = np.array([*(math.cos(tilt) * np.array([-right[1], right[0]])), math.sin(tilt)])
    return np.stack((right, np.cross(right, ahead), ahead))


def fit_distance(
    points: Array, center: Array, axes: Array, half_size: Array, margins: Array
) -> float:
    """Return the least distance [m] of a camera on ``center`` with all ``points`` (P, 3) in view.

    A sphere of ``margins`` (P,) [m] around each point stays inside the picture's four bounding
    planes. See ``camera_axes`` and ``half_picture`` for the camera.
    """
    sines = half_size / np.sqrt(1.0 + half_size**2)
    offset = points - center
    across = np.abs(offset @ axes[:2].T) / half_size + margins[:, None] / sines
    needed = across - (offset @ axes[2])[:, None]
    return max(NEAREST, float(needed.max()))


def _smoothed(values: Array, width: int) -> Array:
    """Return the moving average of ``values`` (T, D) over about ``width`` rows."""
    half = width // 2
    padded = np.pad(values, ((half, half), (0, 0)), mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1, axis=0).mean(axis=-1)
