"""Controllers: what turns a task's commands into joint targets, with a memory of its own."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mqe.controllers.blocks import ActiveWorlds
from mqe.world.state import SceneState


class Controller(Protocol):
    """What moves the robots of N worlds; a task holds one. What a command means is the
    controller's.
    """

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask`` (N,), commands as well."""
        ...

    def command(self, velocity: Tensor) -> None:
        """Hold a command (N, A, 3) from now on."""
        ...

    def targets(self, state: SceneState) -> Tensor:
        """Return joint targets (N, A, J) [rad] for the coming control step."""
        ...

    def use_blocks(self, worlds: ActiveWorlds) -> None:
        """Run networks, if any, over blocks of the active ones of ``worlds``."""
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...
