"""Checkpoints during the training, and the end of a run if they cannot be written."""

import time
from collections.abc import Callable

from harl_mapush.callback import Callback
from harl_mapush.callbacks.run_context import RunContext
from harl_mapush.runs.provenance import LostFolderError
from harl_mapush.runs.record import RunRecord

_MOST_FAILURES = 3  # failures in a row before the run ends
# The last checkpoint of a run has no next interval, so it is tried several times at once.
_LAST_ATTEMPTS = 3
_PAUSE_S = 2.0  # pause between two attempts


class UnsavedError(Exception):
    """Checkpoints cannot be written. The message has the reason."""


class CheckpointSaver(Callback):
    """Saves checkpoints. A failed write is skipped, several in a row end the run."""

    def __init__(self, run: RunContext, record: RunRecord, flush: Callable[[], None]) -> None:
        """Save all ranks' state into ``run``. Only rank 0 calls ``record``.

        ``flush`` writes the curves. They precede each checkpoint, since the run may resume from it.
        """
        self._trainer = run.trainer
        self._ranks = run.ranks
        self._say = run.say
        self._record = record
        self._flush = flush
        self._num_failures = 0  # in a row

    def on_checkpoint(self, env_steps: int) -> None:
        """Save the state. At the run's end, try several times if necessary."""
        if self._trainer.progress.is_done:
            self.save_last(env_steps)
        else:
            self.save(env_steps)

    def save(self, env_steps: int) -> None:
        """Save the state. Raise UnsavedError at the third failure in a row."""
        reason = self._try(env_steps)
        self._num_failures = 0 if reason is None else self._num_failures + 1
        if reason is None:
            return
        problem = f"checkpoint {env_steps} cannot be written ({reason})"
        if self._num_failures >= _MOST_FAILURES:
            raise UnsavedError(f"{problem}, nor could the {_MOST_FAILURES - 1} before it")
        self._say(f"Note: {problem}; training continues, and the next one is tried at its time.")

    def save_last(self, env_steps: int) -> None:
        """Save the state in several attempts. Raise UnsavedError if all attempts fail."""
        for attempt in range(_LAST_ATTEMPTS):
            if attempt > 0:
                time.sleep(_PAUSE_S)
            reason = self._try(env_steps)
            if reason is None:
                return
        raise UnsavedError(f"checkpoint {env_steps} cannot be written ({reason})")

    def _try(self, env_steps: int) -> str | None:
        """Save the state. Return None, or the reason for the failure.

        Raises LostFolderError if another run has taken the run's folder.
        """
        self._ranks.check_weights(self._trainer.algorithm.weights)
        state = self._trainer.state_dict()
        networks = self._trainer.algorithm.networks

        # Only rank 0 writes, and all ranks learn how it went.
        reason = None
        lost = None
        try:
            if self._ranks.is_first:
                self._record.check_folder()
                self._flush()
                self._record.save(env_steps, networks, state)
        except LostFolderError as error:
            lost = error
        except (OSError, RuntimeError) as error:  # torch raises the latter for a full disk
            unknown = f"{type(error).__name__}; is the disk full?"
            reason = getattr(error, "strerror", None) or unknown
        reason, lost = self._ranks.gather((reason, lost))[0]
        if lost is not None:
            raise lost
        return reason
