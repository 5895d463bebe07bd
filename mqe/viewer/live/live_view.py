"""Scene and camera for the page. The user turns and zooms the view.

The camera tracks a separate massless body. This body follows robots, object and goal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import mujoco
import numpy as np
from numpy.typing import NDArray

from mqe.viewer.camera import CAMERAS, FOLLOW_TIME, camera_axes, fitted
from mqe.viewer.lines import Line, command_arrows, planned_way, trail
from mqe.viewer.live.player import Player
from mqe.viewer.looks import copy_state, shown_model, shown_spec
from mqe.viewer.meshes import NO_MESHES, Meshes
from mqe.world.scene import Scene

TARGET = "camera target"
_SPARE = 1.05  # factor of a new distance over the least
# Parts of a state with sizes independent of the camera's body
_OWN_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION) & ~int(
    mujoco.mjtState.mjSTATE_MOCAP_POS
    | mujoco.mjtState.mjSTATE_MOCAP_QUAT
    | mujoco.mjtState.mjSTATE_XFRC_APPLIED
)


def live_model(
    scene: Scene, meshes: Meshes = NO_MESHES, numbers: Mapping[str, float] | None = None
) -> mujoco.MjModel:
    """Return the ``shown_model`` of ``scene`` with a last body for the camera to track.

    See ``shown_model`` for ``meshes``. ``numbers`` are MuJoCo's custom numeric fields for the
    renderer, by name.
    """
    if scene.spec is None:
        return shown_model(scene)
    spec = shown_spec(scene, scene.spec, meshes)
    for name, value in (numbers or {}).items():
        spec.add_numeric(name=name, data=[value], size=1)
    spec.worldbody.add_body(name=TARGET, mocap=True)
    return spec.compile()


def copy_live_state(model: mujoco.MjModel, data: mujoco.MjData, shown: mujoco.MjData) -> None:
    """Copy a world's state into the data of its ``live_model``, except the camera's body."""
    if model.nbody == len(data.xpos):
        copy_state(model, data, shown)
        return
    mujoco.mj_copyState(model, data, shown, _OWN_STATE)
    shown.mocap_pos[: len(data.mocap_pos)] = data.mocap_pos
    shown.mocap_quat[: len(data.mocap_quat)] = data.mocap_quat
    shown.xfrc_applied[: len(data.xfrc_applied)] = data.xfrc_applied
    mujoco.mj_forward(model, shown)


class LiveView:
    """A camera with robots, object and goal in the picture from any side."""

    def __init__(self, model: mujoco.MjModel, player: Player) -> None:
        self.follows = True
        self._model = model
        self._player = player
        names = {model.body(i).name: i for i in range(model.nbody)}
        bodies = [*player.robots, "object", "goal"]
        self._seen = [names[name] for name in bodies if name in names]
        self._target = names.get(TARGET, self._seen[0])
        self._center: NDArray[np.float64] | None = None
        self._distance = 0.0  # the view's choice
        self._episode: tuple[int, int] | None = None  # world and number
        self._then = time.monotonic()

    def reset(self, camera: mujoco.MjvCamera) -> None:
        """Turn the camera to the films' direction of view again, and follow the scene."""
        camera.azimuth = CAMERAS["follow"].azimuth
        camera.elevation = CAMERAS["follow"].elevation
        self.follows = True
        self._center = None
        self._distance = 0.0
        self._episode = None

    def aim(
        self, data: mujoco.MjData, camera: mujoco.MjvCamera, aspect: float, covered: float = 0.0
    ) -> None:
        """Move the camera's body, and the camera back if something would leave the picture.

        ``aspect`` is the picture's width over its height. ``covered`` is the fraction of the width
        behind the panel at the left.
        """
        if not self.follows:
            camera.type = mujoco.mjtCamera.mjCAMERA_FREE
            return
        camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        camera.trackbodyid = self._target
        half_height = math.tan(math.radians(self._model.vis.global_.fovy) / 2)
        axes = camera_axes(camera.azimuth, camera.elevation)
        visible = np.array([aspect * (1.0 - covered), 1.0]) * half_height
        center, needed = fitted(data.xpos[self._seen], axes, visible)
        self._choose_distance(camera, needed)

        now = time.monotonic()
        blend = 1.0 - math.exp((self._then - now) / FOLLOW_TIME)
        self._then = now
        self._center = center if self._center is None else self._center
        self._center = self._center + blend * (center - self._center)
        shift = covered * aspect * half_height * camera.distance  # to the middle beside the panel
        self._place(data, self._center - shift * axes[0])

    def standing(self, data: mujoco.MjData, camera: mujoco.MjvCamera) -> mujoco.MjvCamera:
        """Return a free camera with the view of ``camera``, for finding the body at a point."""
        free = mujoco.MjvCamera()
        free.azimuth = camera.azimuth
        free.elevation = camera.elevation
        free.distance = camera.distance
        free.lookat[:] = data.xpos[self._target] if self.follows else camera.lookat
        return free

    def _choose_distance(self, camera: mujoco.MjvCamera, needed: float) -> None:
        """Choose the distance at an episode's start, and when something leaves the picture.

        A distance chosen by the user stays until a reset.
        """
        episode = (self._player.world, self._player.episode)
        is_new = episode != self._episode
        self._episode = episode
        if self._distance and not math.isclose(camera.distance, self._distance, rel_tol=1e-3):
            return
        if is_new:
            self._center = None
        if is_new or needed > camera.distance:
            camera.distance = _SPARE * needed
        self._distance = camera.distance

    def _place(self, data: mujoco.MjData, position: NDArray[np.float64]) -> None:
        """Put the camera's body at ``position`` (3,) [m]."""
        mocap = self._model.body_mocapid[self._target]
        if mocap < 0:  # a scene without a description has no such body
            return
        data.mocap_pos[mocap] = position
        data.xpos[self._target] = position
        data.subtree_com[self._target] = position


def drawn_lines(player: Player, data: mujoco.MjData, arrows: bool, trace: bool) -> list[Line]:
    """Return drawings: the robots' velocity commands, the object's path and planned path."""
    lines: list[Line] = []
    if trace:
        lines += trail(player.trail)
    if trace and player.way:
        lines += planned_way([data.body("object").xpos, *player.way])
    if arrows:
        for name, command in zip(player.robots, list(player.commands), strict=False):
            body = data.body(name)
            lines += command_arrows(body.xpos, body.xmat, command)
    return lines
