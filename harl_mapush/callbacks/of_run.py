"""The log and the callbacks of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from harl_mapush.callback import Callback
from harl_mapush.callbacks.checkpoints import CheckpointSaver
from harl_mapush.callbacks.ending import EndOnRequest
from harl_mapush.callbacks.logger import ProgressLog, RunLogger
from harl_mapush.callbacks.run_context import CALLBACKS, RunContext
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.interruption import WallTime
from harl_mapush.parts import Parts
from harl_mapush.run_settings import LoggerCfg
from harl_mapush.runs.record import RunRecord


class RunCallbacks(NamedTuple):
    """A run's callbacks in the order of their calls, and the callbacks needed at its end."""

    run: RunContext
    all: list[Callback]
    saver: CheckpointSaver
    ending: EndOnRequest


def make_callbacks(
    cfg: LoggerCfg, record: RunRecord, parts: Parts, ranks: Ranks, wall_time: WallTime
) -> RunCallbacks:
    """Open a run's log, on its first rank, and build its callbacks."""
    trainer = parts.trainer
    logger = None
    say: Callable[..., None] = _nothing
    flush: Callable[..., None] = _nothing
    if ranks.is_first:
        task = record.settings["task"]["name"]
        algorithm = record.settings["algorithm"]["name"]
        title = f"Env mapush Task {task} Algo {algorithm} Exp {cfg.exp_name}"
        env_steps = trainer.progress.env_steps
        headline = parts.env.report.headline
        logger = RunLogger(
            cfg,
            record.folder,
            title,
            env_steps=env_steps,
            headline=headline,
            check_folder=record.check_folder,
        )
        say = logger.say
        flush = logger.flush

    run = RunContext(record.folder, record.settings, parts.env, trainer, ranks, say)
    saver = CheckpointSaver(run, record, flush)
    further = [make(run) for make in CALLBACKS.values()]
    # The end of a run measures the checkpoint that was written before.
    ending = EndOnRequest(trainer, wall_time, saver, ranks)
    callbacks = [ProgressLog(logger, trainer), *further, saver, ending]
    return RunCallbacks(run, callbacks, saver, ending)


def _nothing(*_: object) -> None:
    """Stand for a log on all ranks but the first."""
