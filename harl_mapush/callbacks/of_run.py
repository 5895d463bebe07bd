"""The callbacks of a run, chosen by its settings."""

from __future__ import annotations

from typing import NamedTuple

from harl_mapush.callback import Callback
from harl_mapush.callbacks.broken_log import BrokenLog
from harl_mapush.callbacks.checkpoints import CheckpointSaver
from harl_mapush.callbacks.ending import EndOnRequest
from harl_mapush.callbacks.logger import NullLogger, ProgressLog, RunLogger
from harl_mapush.callbacks.run_context import CALLBACKS, RunContext
from harl_mapush.callbacks.training_evaluation import (
    EvaluationCallback,
    TrainingEvaluation,
    make_evaluation_env,
)
from harl_mapush.config import RunCfg
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.interruption import WallTime
from harl_mapush.parts import Parts
from harl_mapush.runs.record import RunRecord


class RunCallbacks(NamedTuple):
    """A run's callbacks in the order of their calls, and the callbacks needed at its end."""

    all: list[Callback]
    saver: CheckpointSaver
    ending: EndOnRequest
    evaluation: TrainingEvaluation | None


def make_callbacks(
    cfg: RunCfg,
    record: RunRecord,
    parts: Parts,
    ranks: Ranks,
    logger: RunLogger | NullLogger,
    wall_time: WallTime,
) -> RunCallbacks:
    """Build the callbacks of a run."""
    run = RunContext(
        record.folder, record.settings, parts.env, parts.trainer, parts.team, ranks, logger.say
    )
    saver = CheckpointSaver(run, record)
    callbacks: list[Callback] = []
    recorder = parts.env.record_broken_worlds()
    if recorder is not None:
        callbacks.append(BrokenLog(recorder, ranks))

    evaluation = None
    if cfg.runner.evaluation_interval is not None:
        if ranks.is_first:
            env = make_evaluation_env(cfg.env, cfg.sim, cfg.task, cfg.runner)
            episodes = cfg.runner.evaluation_episodes
            evaluation = TrainingEvaluation(
                env, episodes, run.folder, run.trainer.progress.env_steps
            )
        interval = cfg.runner.evaluation_interval
        callbacks.append(EvaluationCallback(evaluation, interval, saver, run))

    callbacks.append(ProgressLog(logger, run.trainer))
    callbacks += [make(run) for make in CALLBACKS.values()]

    # The end of a run measures the checkpoint that was written before.
    ending = EndOnRequest(run.trainer, wall_time, saver, logger, ranks)
    callbacks += [saver, ending]
    return RunCallbacks(callbacks, saver, ending, evaluation)
