"""Controllers: they turn a task's commands into joint targets, and keep state between control
steps.
"""

from typing import Protocol

from torch import Tensor

from mqe.controllers.blocks import ActiveWorlds
from mqe.world.state import SceneState


class Controller(Protocol):
    """Moves a task's robots in N worlds, and defines the meaning of commands."""

    def begin(self, mask: Tensor) -> None:
        """Reset memory and command in the worlds of ``mask`` (N,)."""
        ...

    def command(self, velocity: Tensor) -> None:
        """Set the command (N, A, 3) until the next call."""
        ...

    def targets(self, state: SceneState) -> Tensor:
        """Return joint targets (N, A, J) [rad] for the coming control step."""
        ...

    def use_blocks(self, worlds: ActiveWorlds) -> None:
        """Evaluate networks, if any, over blocks of the active ``worlds``."""
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...
