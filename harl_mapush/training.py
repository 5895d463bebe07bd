"""A training: its log, its callbacks, and its end with an exit code."""

from __future__ import annotations

import signal
import sys

from harl_mapush.callbacks.checkpoints import FolderTakenError, UnsavedError
from harl_mapush.callbacks.ending import RunEnded
from harl_mapush.callbacks.of_run import make_callbacks, make_logger
from harl_mapush.collectors.launchers import CollectionError
from harl_mapush.config import RunCfg
from harl_mapush.distributed.ranks import Ranks, UnequalRanksError
from harl_mapush.interruption import SIGNALLED, TIME_IS_UP, Signalled, WallTime
from harl_mapush.parts import Parts
from harl_mapush.runs import resume, run_folder
from harl_mapush.runs.record import RunRecord
from harl_mapush.trainer import BrokenWorldsError, NonFiniteError
from mqe.sim.simulator import SimulatorError

NOTHING_SAVED = 4  # the exit code after failed checkpoints


class Training:
    """A built run's training in its folder."""

    def __init__(
        self,
        cfg: RunCfg,
        record: RunRecord,
        parts: Parts,
        ranks: Ranks,
        wall_time: WallTime,
        program: str,
    ) -> None:
        """Write settings and origin into the folder of ``record``, and build the callbacks.

        ``cfg`` are the settings kept in the folder.
        """
        self._cfg = cfg
        self._folder = record.folder
        self._trainer = parts.trainer
        self._ranks = ranks
        self._program = program
        if ranks.is_first:
            record.begin()
        logger = make_logger(cfg.logger, record, parts, ranks)
        self._say = logger.say
        self._callbacks = make_callbacks(record, parts, ranks, logger, wall_time)

    def train(self) -> int:
        """Train to the end. Return the exit code."""
        self._introduce()
        logs = self._folder / run_folder.COLLECTORS
        try:
            with self._callbacks.ending.interruption:
                self._trainer.learn(self._callbacks.all, logs)
            self._conclude()
            return 0
        except RunEnded as ended:
            return self._end_early(ended.signal)
        except CollectionError as error:
            return self._save_and_end(error)
        except FolderTakenError as error:
            if self._ranks.is_first:
                sys.stderr.write(f"{self._program}: {error}\n")
            return NOTHING_SAVED
        except UnsavedError as error:
            self._write_error(
                f"{self._folder}: {error}; the training since the last checkpoint is lost"
            )
            return NOTHING_SAVED
        except SimulatorError as error:
            self._write_error(str(error))
            return 1
        except (NonFiniteError, BrokenWorldsError, UnequalRanksError) as error:
            is_learners = isinstance(error, NonFiniteError) and not str(error).startswith("reward/")
            lower = " --set algorithm.learning_rate=LOWER" if is_learners else ""
            self._write_error(str(error), lower)
            return 1
        except (KeyboardInterrupt, Signalled) as ending:
            # A second signal, or one before the end of the first iteration.
            number = ending.signal if isinstance(ending, Signalled) else signal.SIGINT
            self._ranks.ends_together = False
            lost = "interrupted; the training since the last checkpoint is lost"
            sys.stderr.write(f"{self._program}: {lost}; {self._how_to_resume()}\n")
            return SIGNALLED + number
        finally:
            for callback in self._callbacks.all:
                callback.on_end()

    def _introduce(self) -> None:
        cfg = self._cfg
        progress = self._trainer.progress
        resumes = ""
        if progress.env_steps:
            resumes = f"; resumes at {progress.env_steps} of {progress.num_env_steps} env steps"
        where = cfg.sim.device
        if self._ranks.size > 1:
            where = f"{self._ranks.size} x {cfg.sim.device}"
        self._say(
            f"Run folder {self._folder}; {cfg.env.num_envs} worlds on {where} ({cfg.sim.name})"
            f"{resumes}."
        )

    def _conclude(self) -> None:
        self._say(f"Done; the last checkpoint is {run_folder.last_checkpoint(self._folder)}.")

    def _end_early(self, number: signal.Signals | None) -> int:
        """Report an early end and the last checkpoint. Return the exit code."""
        if number is None:
            reason = f"Time is up (max_wall_time {self._cfg.runner.max_wall_time})"
            code = TIME_IS_UP
        else:
            reason = f"Interrupted ({number.name})"
            code = SIGNALLED + number
        again = resume.command(self._folder, self._program, self._cfg.env.imports)
        self._say(
            f"{reason}; the last state is saved in {run_folder.last_checkpoint(self._folder)}. "
            f"Resume with: {again}"
        )
        return code

    def _save_and_end(self, error: CollectionError) -> int:
        """Save a failed run if it has a complete iteration. Return the exit code."""
        progress = self._trainer.progress
        if progress.iteration:
            try:
                self._callbacks.saver.save_last(progress.env_steps)
            except UnsavedError as unsaved:
                sys.stderr.write(f"{self._program}: {unsaved}\n")
        sys.stderr.write(f"{self._program}: {error}; {self._how_to_resume()}\n")
        return 1

    def _write_error(self, line: str, more: str = "") -> None:
        """Write the final error on all ranks, and the command to resume the run."""
        if self._ranks.is_first:
            sys.stderr.write(f"{self._program}: {line}; {self._how_to_resume(more)}\n")

    def _how_to_resume(self, more: str = "") -> str:
        return resume.how_to_resume(self._folder, self._program, self._cfg.env.imports, more)
