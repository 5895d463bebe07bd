"""The log and the callbacks of a run."""

from __future__ import annotations

from typing import NamedTuple

from harl_mapush.callback import Callback
from harl_mapush.callbacks.broken_log import BrokenLog
from harl_mapush.callbacks.checkpoints import CheckpointSaver
from harl_mapush.callbacks.ending import EndOnRequest
from harl_mapush.callbacks.logger import NullLogger, ProgressLog, RunLogger
from harl_mapush.callbacks.run_context import CALLBACKS, RunContext
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.interruption import WallTime
from harl_mapush.parts import Parts
from harl_mapush.run_settings import LoggerCfg
from harl_mapush.runs import provenance
from harl_mapush.runs.record import RunRecord


class RunCallbacks(NamedTuple):
    """A run's callbacks in the order of their calls, and the callbacks needed at its end."""

    all: list[Callback]
    saver: CheckpointSaver
    ending: EndOnRequest


def make_logger(
    cfg: LoggerCfg, record: RunRecord, parts: Parts, ranks: Ranks
) -> RunLogger | NullLogger:
    """Open the log. All ranks call this, since statistics are sums over ranks."""
    names = list(parts.trainer.statistics())
    if not ranks.is_first:
        return NullLogger()
    progress = parts.trainer.progress
    task = record.settings["task"]["name"]
    algorithm = record.settings["algorithm"]["name"]
    logger = RunLogger(
        cfg,
        record.folder,
        f"Env mapush Task {task} Algo {algorithm} Exp {cfg.exp_name}",
        env_steps=progress.env_steps,
        headline=parts.env.report.headline,
    )
    if not progress.env_steps:
        logger.add_summaries(provenance.tensorboard_summaries(record.settings, record.start, names))
    return logger


def make_callbacks(
    record: RunRecord,
    parts: Parts,
    ranks: Ranks,
    logger: RunLogger | NullLogger,
    wall_time: WallTime,
) -> RunCallbacks:
    """Build the callbacks of a run."""
    run = RunContext(record.folder, record.settings, parts.env, parts.trainer, ranks, logger.say)
    saver = CheckpointSaver(run, record)
    callbacks: list[Callback] = []
    recorder = parts.env.record_broken_worlds()
    if recorder is not None:
        callbacks.append(BrokenLog(recorder, ranks))

    callbacks.append(ProgressLog(logger, run.trainer))
    callbacks += [make(run) for make in CALLBACKS.values()]

    # The end of a run measures the checkpoint that was written before.
    ending = EndOnRequest(run.trainer, wall_time, saver, logger, ranks)
    callbacks += [saver, ending]
    return RunCallbacks(callbacks, saver, ending)
