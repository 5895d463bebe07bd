"""The commonest cause of broken worlds, for the run's log."""

from __future__ import annotations

from collections import Counter

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
        """Return the commonest cause in the last iteration, with a world's number.

        With several ranks the first reports all ranks' worlds, and the others return None.
        """
        by_rank = self._ranks.gather_on_first(self._recorder.take_broken())
        broken = [world for worlds in by_rank for world in worlds]
        # The causes of two worlds differ by their numbers, so their kinds are counted.
        kinds = Counter(world.cause.partition(" was ")[0] for world in broken)
        for world in broken:
            if world.cause.startswith(kinds.most_common(1)[0][0]):
                return f"world {world.world}: {world.cause}"
        return None
