"""The last states of worlds that break, and the number in them that broke first."""

from __future__ import annotations

import torch

from mqe.world.broken_worlds import BrokenWorld, LastStates, Limits, num_rows
from mqe.world.scene import Scene
from mqe.world.state import SceneState


class BrokenWorldRecorder(LastStates):
    """The last states of every world of an environment; ``take_broken`` returns the broken ones."""

    def __init__(
        self, scene: Scene, num_envs: int, device: torch.device, first_world: int = 0
    ) -> None:
        """Record ``num_envs`` worlds of ``scene``, numbered from ``first_world`` on."""
        super().__init__(num_rows(scene), num_envs, device)
        self._scene = scene
        self._first_world = first_world

    def take_broken(self) -> list[BrokenWorld]:
        """Return the worlds that broke since the last call, 64 at most; wait for the device."""
        limits = Limits(self._scene, torch.device("cpu"))
        broken = []
        for world, rows in self.take().items():
            scene = self._scene
            has_object = scene.object is not None
            state = SceneState(rows, scene.num_robots, has_object, scene.num_obstacles)
            cause = limits.complaint(state)
            cause = cause or "the simulator gave up on it, or an action was no number"
            broken.append(BrokenWorld(self._first_world + world, cause, rows.t().numpy()))
        return broken
