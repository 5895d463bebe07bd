"""Cameras for films and pictures: all bodies of a world stay in view."""

from __future__ import annotations

import math
from typing import NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from mqe.env.environment import MultiAgentEnv
from mqe.viewer.render_pool import Tile
from mqe.world.objects import GeomCfg, ObjectCfg
from mqe.world.scene import Scene

FOLLOW_TIME = 0.8  # [s] the camera's time constant
MARGIN = 1.1  # [m] visible around the origins of robots and goal, with the goal's ring
NEAREST = 3.0  # [m] least distance from the scene


class Angle(NamedTuple):
    """A camera's direction of view on a world."""

    azimuth: float = 125.0  # [deg]
    elevation: float = -32.0  # [deg] from the horizon; down is negative
    distance: float | None = None  # [m]; None: from as near as everything fits in


CAMERAS = {  # by name
    "follow": Angle(),
    "low": Angle(125.0, -14.0),
    "side": Angle(90.0, -20.0),
    "top": Angle(90.0, -89.0),
}


class ShownState(NamedTuple):
    """Drawn part of a world's state."""

    qpos: NDArray[np.float64]  # (nq,)
    mocap_pos: NDArray[np.float64]  # (nmocap, 3) [m]
    mocap_quat: NDArray[np.float64] | None = None  # (nmocap, 4); None: as in the model
    way: NDArray[np.float64] | None = None  # (P, 2) [m] planned for the object; None: no planner

    def points(self, scene: Scene) -> NDArray[np.float64]:
        """Return the positions (P, 3) [m] of robots, object and goal."""
        size = scene.robot_qpos // scene.num_robots
        points = [self.qpos[size * i : size * i + 3] for i in range(scene.num_robots)]
        if scene.object is not None:
            points += [self.qpos[scene.robot_qpos : scene.robot_qpos + 3], self.mocap_pos[0]]
        return np.stack(points)


class Camera:
    """A free camera with robots, object and goal in the picture, smooth within an episode."""

    def __init__(
        self,
        env: MultiAgentEnv,
        world: int,
        rate: float,
        aspect: float,
        angle: Angle = CAMERAS["follow"],
        drawn_model: int = 0,
    ) -> None:
        """Follow world ``world`` at ``rate`` pictures a second [Hz].

        ``aspect`` is a picture's width over its height, ``drawn_model`` the index of the world's
        model in the film.
        """
        self.world = world
        self._drawn_model = drawn_model
        self._scene = env.scene
        model = env.sim.model
        self._bodies = [*env.scene.trunk_bodies]
        if env.scene.object is not None:
            self._bodies += [model.body("object").id, model.body("goal").id]
        self._blend = 1.0 - math.exp(-1.0 / (rate * FOLLOW_TIME))
        self._margins = margins(env.scene)
        half_height = math.tan(math.radians(model.vis.global_.fovy) / 2)
        self._half_size = np.array([aspect * half_height, half_height])
        self._axes = camera_axes(angle.azimuth, angle.elevation)
        self._center: NDArray[np.float64] | None = None
        self._fixed = angle.distance
        self._distance = NEAREST
        self.view = mujoco.MjvCamera()
        self.view.type = mujoco.mjtCamera.mjCAMERA_FREE
        self.view.elevation = angle.elevation
        self.view.azimuth = angle.azimuth

    def cut(self) -> None:
        """Jump to the scene at the next picture instead of moving there."""
        self._center = None

    def look(self, data: mujoco.MjData) -> None:
        """Aim at the bodies' current positions from the nearest distance."""
        self._follow(data.xpos[self._bodies])

    def tile(self, state: ShownState, caption: str = "", outcome: str = "") -> Tile:
        """Aim at the bodies of ``state`` and return the tile to draw."""
        self._follow(state.points(self._scene))
        x, y, z = (float(value) for value in self.view.lookat)
        turned = b"" if state.mocap_quat is None else state.mocap_quat.tobytes()
        way = b"" if state.way is None else state.way.tobytes()
        return Tile(
            state.qpos.tobytes(),
            state.mocap_pos.tobytes(),
            turned,
            (x, y, z),
            float(self.view.distance),
            float(self.view.azimuth),
            float(self.view.elevation),
            caption,
            outcome,
            way,
            self._drawn_model,
        )

    def _follow(self, points: NDArray[np.float64]) -> None:
        center, distance = fitted(points, self._axes, self._half_size, self._margins)
        if self._fixed is not None:
            distance = self._fixed
        if self._center is None:
            shown = center
            self._distance = distance
        else:
            shown = self._center + self._blend * (center - self._center)
        self._center = shown
        self._distance += self._blend * (distance - self._distance)
        if self._fixed is None:
            # The view moves more slowly than the bodies do, and must not lose one.
            needed = fit_distance(points, shown, self._axes, self._half_size, self._margins)
            self._distance = max(self._distance, needed)
        self.view.lookat[:] = shown
        self.view.distance = self._distance


def margins(scene: Scene) -> NDArray[np.float64]:
    """Return the visible radius (P,) [m] around each robot, the object and the goal."""
    if scene.object is None:
        return np.full(scene.num_robots, MARGIN)
    of_object = max(MARGIN, bounding_radius(scene.object))
    return np.array([MARGIN] * scene.num_robots + [of_object, MARGIN])


def camera_axes(azimuth: float, elevation: float) -> NDArray[np.float64]:
    """Return unit vectors (3, 3) to the right, up and ahead of a camera [deg]."""
    turn = math.radians(azimuth)
    tilt = math.radians(elevation)
    right = np.array([math.sin(turn), -math.cos(turn), 0.0])
    ahead = np.array([*(math.cos(tilt) * np.array([-right[1], right[0]])), math.sin(tilt)])
    return np.stack((right, np.cross(right, ahead), ahead))


def fitted(
    points: NDArray[np.float64],
    axes: NDArray[np.float64],
    half_size: NDArray[np.float64],
    margins: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], float]:
    """Return the centre of ``points`` (P, 3) [m] and the nearest camera distance [m] from it.

    A camera with these ``axes`` then sees all points with their ``margins`` (P,) [m]. ``half_size``
    (2,) is half the picture's width and height at a distance of 1. Without ``margins`` each is
    ``MARGIN``.
    """
    if margins is None:
        margins = np.full(len(points), MARGIN)
    center = (points.min(axis=0) + points.max(axis=0)) / 2
    return center, fit_distance(points, center, axes, half_size, margins)


def fit_distance(
    points: NDArray[np.float64],
    center: NDArray[np.float64],
    axes: NDArray[np.float64],
    half_size: NDArray[np.float64],
    margins: NDArray[np.float64],
) -> float:
    """Return the nearest camera distance [m] from ``center`` with all points in the picture.

    A sphere around each point stays inside the picture's four bounding planes.
    """
    sines = half_size / np.sqrt(1.0 + half_size**2)
    offset = points - center
    across = np.abs(offset @ axes[:2].T) / half_size + margins[:, None] / sines
    needed = across - (offset @ axes[2])[:, None]
    return max(NEAREST, float(needed.max()))


def bounding_radius(cfg: ObjectCfg) -> float:
    """Return the radius [m] of a sphere around an object and its origin."""

    def reach(part: GeomCfg) -> float:
        if part.type == "cylinder":
            half_diagonal = math.hypot(part.size[0], part.size[1] / 2)
        else:
            half_diagonal = math.hypot(*part.size) / 2
        return math.hypot(*part.pos) + half_diagonal

    return max(reach(part) for part in cfg.geoms)
