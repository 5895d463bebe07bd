"""A cause of broken worlds, for the run's log."""

from __future__ import annotations

from harl_mapush.callback import Callback
from harl_mapush.distributed.ranks import ALONE, Ranks
from mqe.world.broken_worlds import BrokenWorldRecorder


class BrokenLog(Callback):
    """Reports why worlds broke."""

    def __init__(self, recorder: BrokenWorldRecorder, ranks: Ranks = ALONE) -> None:
        """Read the broken worlds' last states from ``recorder``."""
        self._recorder = recorder
        self._ranks = ranks

    def on_broken_worlds(self, env_steps: int) -> str | None:
        """Return the number of a world that broke in the last iteration, and the cause.

        With several ranks the first reports for all ranks, and the others return None.
        """
        causes = self._ranks.gather_on_first(self._recorder.take_cause())
        return next(filter(None, causes), None)
