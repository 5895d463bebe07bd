"""A callback made of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harl_mapush.callback import Callback
from harl_mapush.progress import IterationReport


class Hooks(Callback):
    """Calls the given functions at their hooks."""

    def __init__(
        self,
        on_iteration: Callable[[IterationReport], Any] | None = None,
        on_checkpoint: Callable[[int], Any] | None = None,
        on_wait: Callable[[], Any] | None = None,
    ) -> None:
        self._on_iteration = on_iteration
        self._on_checkpoint = on_checkpoint
        self._on_wait = on_wait

    def on_iteration(self, report: IterationReport) -> None:
        if self._on_iteration is not None:
            self._on_iteration(report)

    def on_checkpoint(self, env_steps: int) -> None:
        if self._on_checkpoint is not None:
            self._on_checkpoint(env_steps)

    def on_wait(self) -> None:
        if self._on_wait is not None:
            self._on_wait()
