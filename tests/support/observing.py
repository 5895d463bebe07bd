"""An observer with a function for every control step."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mqe.env.observer import Observer
from mqe.world.state import SceneState


class OnControlStep(Observer):
    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def on_control_step(self, state: SceneState, live: Tensor) -> None:
        self._function()
