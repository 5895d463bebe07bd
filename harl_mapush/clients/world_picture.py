"""Pictures of an environment's first world, for rendering clients."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from mqe.env.environment import MultiAgentEnv
from mqe.sim.simulator import snapshot
from mqe.viewer.camera import Camera
from mqe.viewer.light import aim_light
from mqe.viewer.looks import copy_state, shown_model
from mqe.viewer.offscreen import OffscreenRenderer

WIDTH = 960  # [pixels]
HEIGHT = 540  # [pixels]


class WorldPicture:
    """Draws an environment's first world in its present state, without a display."""

    def __init__(self, env: MultiAgentEnv) -> None:
        """Open a renderer for the scene in ``env``."""
        env.check_open()
        self._env = env
        self._model = shown_model(env.scene)
        self._data = mujoco.MjData(self._model)
        self._renderer = OffscreenRenderer(self._model, WIDTH, HEIGHT)
        decisions_per_second = 1.0 / (env.step_dt * env.decision_period)
        self._camera = Camera(env, 0, decisions_per_second, WIDTH / HEIGHT)

    def draw(self) -> NDArray[np.uint8]:
        """Return the picture (height, width, 3)."""
        self._env.check_open()
        data = snapshot(self._env.sim, 0)
        self._camera.look(data)
        copy_state(self._model, data, self._data)
        x, y, z = self._camera.view.lookat
        aim_light(self._data, (x, y, z))
        self._renderer.update(self._data, self._camera.view)
        return self._renderer.draw()

    def cut(self) -> None:
        """Let the camera jump to the next episode instead of moving there smoothly."""
        self._camera.cut()

    def close(self) -> None:
        """Free the renderer."""
        self._renderer.close()
