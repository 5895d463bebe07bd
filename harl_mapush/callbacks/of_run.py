"""The callbacks of a run, as its settings ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from harl_mapush.callback import Callback
from harl_mapush.callbacks.broken_log import BrokenLog
from harl_mapush.callbacks.checkpoints import CheckpointSaver
from harl_mapush.callbacks.ending import EndOnRequest
from harl_mapush.callbacks.evaluation_film import EvaluationFilm
from harl_mapush.callbacks.gpu_usage import GpuUsage
from harl_mapush.callbacks.logger import NullLogger, ProgressLog, RunLogger
from harl_mapush.callbacks.run_context import CALLBACKS, RunContext
from harl_mapush.callbacks.training_evaluation import (
    EvaluationCallback,
    TrainingEvaluation,
    make_evaluation_env,
)
from harl_mapush.callbacks.wandb_logger import WandbLogger
from harl_mapush.config import RunCfg
from harl_mapush.interruption import WallTime
from harl_mapush.runs.record import RunRecord
from mqe.world.broken_worlds import BrokenWorldRecorder


class RunCallbacks(NamedTuple):
    """A run's callbacks in the order of their calls, and the callbacks needed at its end."""

    all: list[Callback]
    saver: CheckpointSaver
    ending: EndOnRequest
    evaluation: TrainingEvaluation | None


def make_callbacks(
    cfg: RunCfg,
    run: RunContext,
    record: RunRecord,
    logger: RunLogger | NullLogger,
    recorder: BrokenWorldRecorder | None,
    wall_time: WallTime,
    learner: torch.device,
) -> RunCallbacks:
    """Build the callbacks of ``run``.

    ``recorder`` is None if no states of broken worlds are kept. ``learner`` is the learner's
    device.
    """
    saver = CheckpointSaver(run, record)
    loggers = [logger, *_wandb(cfg, run, record)]
    callbacks: list[Callback] = []
    if recorder is not None:
        callbacks.append(
            BrokenLog(recorder, run.folder, record.text, cfg.logger.broken_worlds, run.ranks)
        )

    evaluation = None
    intervals = []
    if cfg.runner.evaluation_interval is not None:
        evaluation = _make_evaluation(cfg, run)
        interval = cfg.runner.evaluation_interval
        callbacks.append(EvaluationCallback(evaluation, interval, saver, run))
        intervals.append(interval)
        if cfg.logger.film_interval is not None:
            interval = cfg.logger.film_interval
            callbacks.append(EvaluationFilm(evaluation, interval, saver, loggers, run))
            intervals.append(interval)

    if run.ranks.is_first and learner.type == "cuda":
        callbacks.append(GpuUsage(learner))
    callbacks.append(ProgressLog(loggers, run.trainer))
    callbacks += [make(run) for make in CALLBACKS.values()]

    # The end of a run measures the checkpoint that was written before.
    ending = EndOnRequest(run.trainer, wall_time, saver, logger, run.ranks, intervals)
    callbacks += [saver, ending]
    return RunCallbacks(callbacks, saver, ending, evaluation)


def _wandb(cfg: RunCfg, run: RunContext, record: RunRecord) -> Sequence[WandbLogger]:
    if not run.ranks.is_first or cfg.logger.wandb == "off":
        return ()
    return (WandbLogger(cfg.logger, run.folder, record.run_id, run.settings, run.say),)


def _make_evaluation(cfg: RunCfg, run: RunContext) -> TrainingEvaluation | None:
    """Build the evaluation on the first rank. Return None on the others."""
    if not run.ranks.is_first:
        return None
    env = make_evaluation_env(cfg.env, cfg.sim, cfg.task, cfg.runner)
    episodes = cfg.runner.evaluation_episodes
    return TrainingEvaluation(env, episodes, run.folder, run.trainer.progress.env_steps)
