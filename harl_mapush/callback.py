"""The hooks of a run."""

from __future__ import annotations

from harl_mapush.progress import IterationReport


class Callback:
    """Base class of callbacks, which follow a run; a subclass overrides the hooks that it needs.

    With several ranks every rank calls the hooks of its own callbacks, in the same order.
    """

    def on_iteration(self, report: IterationReport) -> IterationReport | None:
        """Run after each iteration; a returned report replaces ``report`` for later callbacks."""

    def on_broken_worlds(self, env_steps: int) -> str | None:
        """Run after an iteration in which worlds broke; return the cause if it is known."""

    def on_checkpoint(self, env_steps: int) -> None:
        """Run at the end of each checkpoint interval and at the end of the run."""

    def on_wait(self) -> None:
        """Run between two updates of a learner with collectors, many times an iteration."""

    def on_end(self) -> None:
        """Run once after the training, however it ended; free what the callback holds."""
