"""Pictures of an environment's first world, for rendering clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mqe.env.environment import MultiAgentEnv
from mqe.viewer.camera import cameras
from mqe.viewer.offscreen import SceneRenderer
from mqe.viewer.recording import shown_state

WIDTH = 960  # [pixels]
HEIGHT = 540  # [pixels]


class WorldPicture:
    """Draws an environment's first world in its present state, without a display."""

    def __init__(self, env: MultiAgentEnv) -> None:
        """Open a renderer for the scene in ``env``."""
        env.check_open()
        self._env = env
        self._renderer = SceneRenderer(env.scene, (WIDTH, HEIGHT))

    def draw(self) -> NDArray[np.uint8]:
        """Return the picture (height, width, 3)."""
        self._env.check_open()
        state = shown_state(self._env)
        (camera,) = cameras(self._env.scene, [state], 1.0, WIDTH / HEIGHT)
        return self._renderer.draw(state, camera)

    def close(self) -> None:
        """Free the renderer."""
        self._renderer.close()
