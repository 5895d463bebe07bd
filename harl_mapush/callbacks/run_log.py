"""The log of a run on its first rank."""

from __future__ import annotations

from harl_mapush.callbacks.logger import NullLogger, RunLogger
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.parts import Parts
from harl_mapush.run_settings import LoggerCfg
from harl_mapush.runs import provenance
from harl_mapush.runs.record import RunRecord


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
