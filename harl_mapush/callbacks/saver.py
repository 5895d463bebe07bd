"""Checkpoints during a training, and what happens if one cannot be written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from harl_mapush.distributed.ranks import Ranks

_MOST_FAILURES = 3  # checkpoints in a row that could not be written, before the run ends
# at the last checkpoint of a run, for which there is no next interval
_LAST_ATTEMPTS = 3
_PAUSE_S = 2.0


class UnsavedError(Exception):
    """Checkpoints cannot be written any more."""


class Saver:
    """Saves checkpoints; one that cannot be written is skipped, several in a row end the run."""

    def __init__(
        self,
        state: Callable[[], dict[str, Any]],
        write: Callable[[int, dict[str, Any]], None],
        say: Callable[[str], None],
        ranks: Ranks,
    ) -> None:
        """Save the ``state`` that all ranks bring together; rank 0 alone does ``write`` it."""
        self._state = state
        self._write = write
        self._say = say
        self._ranks = ranks
        self._num_failures = 0  # in a row

    def save(self, env_steps: int) -> None:
        """Save; raise UnsavedError where it has failed for the third time running."""
        reason = self._try(env_steps)
        self._num_failures = 0 if reason is None else self._num_failures + 1
        if reason is None:
            return
        problem = f"checkpoint {env_steps} cannot be written ({reason})"
        if self._num_failures >= _MOST_FAILURES:
            raise UnsavedError(f"{problem}, nor could the {_MOST_FAILURES - 1} before it")
        self._say(f"Note: {problem}; training continues, and the next is tried at its time.")

    def save_last(self, env_steps: int) -> None:
        """Save, in more than one attempt; raise UnsavedError where all of them fail."""
        for attempt in range(_LAST_ATTEMPTS):
            if attempt > 0:
                time.sleep(_PAUSE_S)
            reason = self._try(env_steps)
            if reason is None:
                return
        raise UnsavedError(f"checkpoint {env_steps} cannot be written ({reason})")

    def _try(self, env_steps: int) -> str | None:
        """Save, and return None, or what is in the way."""
        state = self._state()
        reason = None
        with self._ranks.busy():
            try:
                if self._ranks.is_first:
                    self._write(env_steps, state)
            except (
                OSError,
                RuntimeError,
            ) as error:  # torch's writer raises the latter where a disk is full
                reason = (
                    getattr(error, "strerror", None) or f"{type(error).__name__}; is the disk full?"
                )
        return self._ranks.first(reason)
