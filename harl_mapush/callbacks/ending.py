"""The early end of a run by a signal or the time limit, after its state is saved."""

import signal

from harl_mapush.callback import Callback
from harl_mapush.callbacks.checkpoints import CheckpointSaver
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.interruption import Interruption, Signalled, WallTime
from harl_mapush.progress import IterationReport
from harl_mapush.trainer import Trainer


class RunEnded(Exception):  # noqa: N818, not an error
    """A signal or the time limit ended the run. Its state is saved."""

    def __init__(self, number: signal.Signals | None) -> None:
        self.signal = number  # None for the time limit
        super().__init__()


class EndOnRequest(Callback):
    """Ends a run on a signal or at the time limit, on all ranks after the same iteration."""

    def __init__(
        self, trainer: Trainer, wall_time: WallTime, saver: CheckpointSaver, ranks: Ranks
    ) -> None:
        """End the run of ``trainer``.

        To measure checkpoints, this callback must follow ``saver``.
        """
        self.interruption = Interruption()  # the caller records during the training
        self._trainer = trainer
        self._wall_time = wall_time
        self._saver = saver
        self._ranks = ranks

    def on_iteration(self, report: IterationReport) -> None:
        """Save and raise RunEnded if any rank got a signal or has no time for another iteration."""
        request = (self.interruption.signal, self._wall_time.is_up())
        signals, times = zip(*self._ranks.gather(request), strict=True)
        self.interruption.signal = next((number for number in signals if number is not None), None)
        is_asked = self.interruption.signal is not None or any(times)
        if is_asked and not self._trainer.progress.is_done:
            self._end(report.env_steps)

    def on_checkpoint(self, env_steps: int) -> None:
        """Record the time for writing the last checkpoint."""
        self._wall_time.note_saved()

    def on_wait(self) -> None:
        """Save and raise RunEnded if the run must end. Before the first iteration raise Signalled.

        Without a complete iteration there is no state to save.
        """
        number = self.interruption.signal
        has_begun = self._trainer.progress.iteration > 0
        if number is None and not (has_begun and self._wall_time.is_past()):
            return
        if number is not None and not has_begun:
            raise Signalled(number)
        self._end(self._trainer.progress.env_steps)

    def _end(self, env_steps: int) -> None:
        self._saver.save_last(env_steps)
        raise RunEnded(self.interruption.signal)
