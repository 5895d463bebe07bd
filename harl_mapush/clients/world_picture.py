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
    """Draws an environment's first world, without a display. The first picture opens a renderer."""

    def __init__(self) -> None:
        self._renderer: SceneRenderer | None = None

    def draw(self, env: MultiAgentEnv) -> NDArray[np.uint8]:
        """Return a picture (height, width, 3) of the present state of ``env``."""
        env.check_open()
        if self._renderer is None:
            self._renderer = SceneRenderer(env.scene, (WIDTH, HEIGHT))
        state = shown_state(env)
        (camera,) = cameras(env.scene, [state], 1.0, WIDTH / HEIGHT)
        return self._renderer.draw(state, camera)

    def close(self) -> None:
        """Free the renderer."""
        if self._renderer is not None:
            self._renderer.close()
        self._renderer = None
