"""A training: its log, its callbacks, and its end with an exit code."""

import signal
import sys

from harl_mapush.callbacks.checkpoints import CheckpointSaver, UnsavedError
from harl_mapush.callbacks.ending import EndOnRequest, RunEnded
from harl_mapush.callbacks.logger import ProgressLog, RunLogger
from harl_mapush.callbacks.run_context import CALLBACKS, RunContext
from harl_mapush.collectors.launchers import CollectionError
from harl_mapush.distributed.ranks import Ranks, UnequalRanksError
from harl_mapush.interruption import SIGNALLED, TIME_IS_UP, Signalled, WallTime
from harl_mapush.parts import Parts
from harl_mapush.run_settings import LoggerCfg
from harl_mapush.runs import run_folder
from harl_mapush.runs.provenance import LostFolderError
from harl_mapush.runs.record import RunRecord
from harl_mapush.start import PROGRAM, Start
from harl_mapush.trainer import BrokenWorldsError, NonFiniteError
from mqe.sim.simulator import SimulatorError

NOTHING_SAVED = 4  # the exit code after failed checkpoints


class Training:
    """A built run's training in its folder."""

    def __init__(
        self,
        cfg: LoggerCfg,
        record: RunRecord,
        parts: Parts,
        ranks: Ranks,
        wall_time: WallTime,
        start: Start,
    ) -> None:
        """Open the run's log, on its first rank, and build its callbacks."""
        self._start = start
        self._folder = record.folder
        trainer = parts.trainer
        logger = None
        if ranks.is_first:
            task = record.settings["task"]["name"]
            algorithm = record.settings["algorithm"]["name"]
            title = f"Env mapush Task {task} Algo {algorithm} Exp {cfg.exp_name}"
            logger = RunLogger(
                cfg,
                record.folder,
                title,
                env_steps=trainer.progress.env_steps,
                headline=parts.env.report.headline,
                check_folder=record.check_folder,
            )
        say = _nothing if logger is None else logger.say
        flush = _nothing if logger is None else logger.flush

        self._run = RunContext(record.folder, record.settings, parts.env, trainer, ranks, say)
        self._saver = CheckpointSaver(self._run, record, flush)
        further = [make(self._run) for make in CALLBACKS.values()]
        # The end of a run measures the checkpoint that was written before.
        self._ending = EndOnRequest(trainer, wall_time, self._saver, ranks)
        self._callbacks = [ProgressLog(logger, trainer), *further, self._saver, self._ending]

    def train(self) -> int:
        """Train to the end. Return the exit code."""
        self._introduce()
        logs = self._folder / run_folder.COLLECTORS
        try:
            with self._ending.interruption.recorded():
                self._run.trainer.learn(self._callbacks, logs)
            last = run_folder.last_checkpoint(self._folder)
            self._run.say(f"Done; the last checkpoint is {last}.")
            return 0
        except RunEnded as ended:
            return self._end_early(ended.signal)
        except CollectionError as error:
            return self._save_and_end(error)
        except LostFolderError as error:
            if self._run.ranks.is_first:
                sys.stderr.write(f"{PROGRAM}: {error}\n")
            return NOTHING_SAVED
        except UnsavedError as error:
            self._write_error(
                f"{self._folder}: {error}; the training since the last checkpoint is lost"
            )
            return NOTHING_SAVED
        except (SimulatorError, NonFiniteError, BrokenWorldsError, UnequalRanksError) as error:
            is_learners = isinstance(error, NonFiniteError) and not str(error).startswith("reward/")
            lower = " --set algorithm.learning_rate=LOWER" if is_learners else ""
            self._write_error(str(error), lower)
            return 1
        except Signalled as ending:
            # A second signal, or one before the end of the first iteration.
            self._run.ranks.ends_together = False
            lost = "interrupted; the training since the last checkpoint is lost"
            sys.stderr.write(f"{PROGRAM}: {lost}; {self._start.how_to_resume()}\n")
            return SIGNALLED + ending.signal
        finally:
            for callback in self._callbacks:
                callback.on_end()

    def _introduce(self) -> None:
        settings = self._run.settings
        progress = self._run.trainer.progress
        ranks = self._run.ranks
        resumes = ""
        if progress.env_steps:
            resumes = f"; resumes at {progress.env_steps} of {progress.num_env_steps} env steps"
        sim = settings["sim"]
        where = sim["device"] if ranks.size == 1 else f"{ranks.size} x {sim['device']}"
        self._run.say(
            f"Run folder {self._folder}; {settings['env']['num_envs']} worlds on {where} "
            f"({sim['name']}){resumes}."
        )

    def _end_early(self, number: signal.Signals | None) -> int:
        """Report an early end and the last checkpoint. Return the exit code."""
        if number is None:
            reason = f"Time is up (max_wall_time {self._run.settings['runner']['max_wall_time']})"
            code = TIME_IS_UP
        else:
            reason = f"Interrupted ({number.name})"
            code = SIGNALLED + number
        self._run.say(
            f"{reason}; the last state is saved in {run_folder.last_checkpoint(self._folder)}. "
            f"Resume with: {self._start.command()}"
        )
        return code

    def _save_and_end(self, error: CollectionError) -> int:
        """Save a failed run if it has a complete iteration. Return the exit code."""
        progress = self._run.trainer.progress
        if progress.iteration:
            try:
                self._saver.save_last(progress.env_steps)
            except (UnsavedError, LostFolderError) as unsaved:
                sys.stderr.write(f"{PROGRAM}: {unsaved}\n")
        sys.stderr.write(f"{PROGRAM}: {error}; {self._start.how_to_resume()}\n")
        return 1

    def _write_error(self, line: str, more: str = "") -> None:
        """Write the final error on all ranks, and the command to resume the run."""
        if self._run.ranks.is_first:
            sys.stderr.write(f"{PROGRAM}: {line}; {self._start.how_to_resume(more)}\n")


def _nothing(*_: object) -> None:
    """Stand for a log on all ranks but the first."""
