"""A run's start: its folder and its saved state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

from harl_mapush import lessons
from harl_mapush.callbacks.evaluation_film import check_film
from harl_mapush.callbacks.wandb_logger import check_wandb
from harl_mapush.config import RunCfg
from harl_mapush.run_settings import LoggerCfg
from harl_mapush.runs import checkpoint, resume, run_folder
from harl_mapush.runs.resume import SavedRun
from harl_mapush.trainer import Trainer
from mqe.registry import TASKS


def planned_folder(logger: LoggerCfg, task: Any, algorithm: str, seed: int) -> Path:
    """Return a new run's folder from the settings, or the default one."""
    if logger.out_dir is not None:
        return Path(logger.out_dir)
    subject = TASKS[task.name].subject(task)
    return run_folder.default_run_dir(subject, algorithm, logger.exp_name, seed, datetime.now())


def check_settings(cfg: RunCfg, *, writes: bool) -> None:
    """Raise ConfigError for lessons, films or logs that cannot be, before any work.

    ``writes``: this process writes the log.
    """
    if cfg.algorithm.lessons is not None:
        lessons.settings(cfg)
    check_film(cfg.logger.film_interval, cfg.runner.evaluation_interval)
    if writes:
        check_wandb(cfg.logger)


def check_folder(folder: Path, saved: SavedRun | None, is_named: bool, stack: ExitStack) -> None:
    """Lock a saved run's folder, or check a new one in advance.

    ``is_named``: the user named the folder. Raises ConfigError if the folder is unusable.
    """
    if saved is None:
        run_folder.check_new_run_dir(folder if is_named else folder.parent)
    else:
        stack.enter_context(run_folder.locked(folder))


def open_folder(
    folder: Path,
    saved: SavedRun | None,
    is_named: bool,
    stack: ExitStack,
    say: Callable[[str], None],
) -> Path:
    """Return a new run folder, or a saved run's without partial files."""
    if saved is None:
        return stack.enter_context(run_folder.new_run_dir(folder, is_named=is_named))
    checkpoint.remove_partial(folder)
    for path in run_folder.set_aside_after(folder, saved.env_steps):
        say(f"Note: a later checkpoint is now called {path}.")
    return folder


def load_state(trainer: Trainer, saved: SavedRun, state: dict[str, Any]) -> None:
    """Load a saved state into a trainer. Raise ConfigError if it does not fit."""
    try:
        trainer.load_state_dict(state)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        message = " ".join(str(error).split())[:160]
        raise resume.damaged(saved, f"{type(error).__name__}: {message}") from None
    env_steps = trainer.progress.env_steps
    if env_steps != saved.env_steps:
        raise resume.damaged(saved, f"it is the state after {env_steps} env steps")
