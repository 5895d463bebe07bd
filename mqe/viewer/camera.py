"""Cameras that keep all bodies of a world in view."""

from __future__ import annotations

import math
from typing import NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from mqe.env.environment import MultiAgentEnv
from mqe.viewer.render_pool import Tile
from mqe.world.scene import Scene

FOLLOW_TIME = 0.8  # [s] the camera's time constant
MARGIN = (
    1.1  # [m] around the origin of everything that is to be seen: the ring around the goal as well
)
NEAREST = 3.0  # [m] from what it looks at


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
    """The drawn part of a world's state."""

    qpos: NDArray[np.float64]  # (nq,)
    mocap_pos: NDArray[np.float64]  # (nmocap, 3) [m]

    def points(self, scene: Scene) -> NDArray[np.float64]:
        """Return the positions (P, 3) [m] of robots, object and goal."""
        size = scene.robot_qpos // scene.num_robots
        points = [self.qpos[size * i : size * i + 3] for i in range(scene.num_robots)]
        if scene.object is not None:
            points += [self.qpos[scene.robot_qpos : scene.robot_qpos + 3], self.mocap_pos[0]]
        return np.stack(points)


class Camera:
    """A free camera that keeps robots, object and goal in the picture and moves smoothly within an
    episode.
    """

    def __init__(
        self,
        env: MultiAgentEnv,
        world: int,
        rate: float,
        aspect: float,
        angle: Angle = CAMERAS["follow"],
    ) -> None:
        """Follow world ``world`` at ``rate`` pictures a second [Hz]; ``aspect`` is their width over
        their height.
        """
        self.world = world
        self._scene = env.scene
        model = env.sim.model
        self._bodies = [*env.scene.trunk_bodies]
        if env.scene.object is not None:
            self._bodies += [model.body("object").id, model.body("goal").id]
        self._blend = 1.0 - math.exp(-1.0 / (rate * FOLLOW_TIME))
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
        """Aim at the bodies' current positions from the nearest distance that shows all of them."""
        self._follow(data.xpos[self._bodies])

    def tile(self, state: ShownState, caption: str = "", outcome: str = "") -> Tile:
        """Aim at the bodies of ``state`` and return the tile to draw."""
        self._follow(state.points(self._scene))
        x, y, z = (float(value) for value in self.view.lookat)
        return Tile(
            state.qpos.tobytes(),
            state.mocap_pos.tobytes(),
            (x, y, z),
            float(self.view.distance),
            float(self.view.azimuth),
            float(self.view.elevation),
            caption,
            outcome,
        )

    def _follow(self, points: NDArray[np.float64]) -> None:
        center, distance = fitted(points, self._axes, self._half_size)
        if self._fixed is not None:
            distance = self._fixed
        if self._center is None:
            self._center = center
            self._distance = distance
        self._center = self._center + self._blend * (center - self._center)
        self._distance += self._blend * (distance - self._distance)
        self.view.lookat[:] = self._center
        self.view.distance = self._distance


def camera_axes(azimuth: float, elevation: float) -> NDArray[np.float64]:
    """Return the unit vectors (3, 3) to the right, up and ahead of a camera [deg]."""
    turn = math.radians(azimuth)
    tilt = math.radians(elevation)
    right = np.array([math.sin(turn), -math.cos(turn), 0.0])
    ahead = np.array([*(math.cos(tilt) * np.array([-right[1], right[0]])), math.sin(tilt)])
    return np.stack((right, np.cross(right, ahead), ahead))


def fitted(
    points: NDArray[np.float64], axes: NDArray[np.float64], half_size: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Return the centre of ``points`` (P, 3) [m], and the nearest distance [m] from it at which a
    camera with these ``axes`` sees all of them.

    ``half_size`` (2,) is half the width and height of the picture at a distance of 1.
    """
    center = (points.min(axis=0) + points.max(axis=0)) / 2
    offset = points - center
    needed = (np.abs(offset @ axes[:2].T) + MARGIN) / half_size - (offset @ axes[2])[:, None]
    return center, max(NEAREST, float(needed.max()))
