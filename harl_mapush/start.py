"""A run's start: its folder, its saved state, and the settings kept in the folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harl_mapush import lessons
from harl_mapush.config import RunCfg
from harl_mapush.machine import Machine
from harl_mapush.parts import Parts
from harl_mapush.run_settings import LoggerCfg
from harl_mapush.runs import checkpoint, exported, named_files, provenance, resume, run_folder
from harl_mapush.runs.evaluation_worlds import digest_of_gaits
from harl_mapush.runs.record import RunRecord
from harl_mapush.runs.resume import SavedRun
from harl_mapush.trainer import Trainer
from mqe.config import to_dict
from mqe.controllers.gait import from_anywhere
from mqe.registry import TASKS
from mqe.world.robots import MODELS


def planned_folder(logger: LoggerCfg, task: Any, algorithm: str, seed: int) -> Path:
    """Return a new run's folder from the settings, or the default one."""
    if logger.out_dir is not None:
        return Path(logger.out_dir)
    subject = TASKS[task.name].subject(task)
    return run_folder.default_run_dir(subject, algorithm, logger.exp_name, seed, datetime.now())


def check_lessons(cfg: RunCfg) -> None:
    """Raise ConfigError for lessons that cannot be, if the algorithm has any."""
    if cfg.algorithm.lessons is not None:
        lessons.settings(cfg)


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


def kept_settings(cfg: RunCfg, machine: Machine, num_ranks: int, num_agents: int) -> RunCfg:
    """Return the settings for the run's folder, with all automatic values and absolute paths."""
    device = str(machine.device) if num_ranks == 1 else machine.device.type
    weights = cfg.runner.init_from
    model = cfg.env.model
    if model not in MODELS:
        model = str(Path(model).expanduser().absolute())
    return dataclasses.replace(
        cfg,
        env=dataclasses.replace(cfg.env, num_agents=num_agents, model=model),
        sim=dataclasses.replace(cfg.sim, name=machine.simulator, device=device),
        task=_with_absolute_paths(cfg.task),
        algorithm=_with_absolute_lessons(cfg),
        runner=dataclasses.replace(
            cfg.runner,
            torch_threads=torch.get_num_threads(),
            init_from=None if weights is None else from_anywhere(weights),
        ),
        logger=dataclasses.replace(cfg.logger, out_dir=None),
    )


def make_record(cfg: RunCfg, folder: Path, parts: Parts, device: torch.device) -> RunRecord:
    """Return a run's record with the kept settings ``cfg``."""
    task = parts.env.task
    networks = parts.algorithm.networks
    actors = [networks[f"actor_agent{i}"] for i in range(parts.env.num_agents)]
    return RunRecord(
        folder,
        to_dict(cfg),
        provenance.describe(
            str(device),
            task.features.reward_weights,
            named_files.digests(cfg.task, cfg.algorithm.lessons),
        ),
        digest_of_gaits(cfg),
        partial(exported.export, cfg=cfg, actors=actors, task=task),
        partial(named_files.keep, task=cfg.task),
    )


def _with_absolute_lessons(cfg: RunCfg) -> Any:
    """Return a run's algorithm with absolute paths to its teachers and to their lessons' files."""
    if cfg.algorithm.lessons is None:
        return cfg.algorithm
    absolute = []
    for lesson, worlds in zip(cfg.algorithm.lessons, lessons.settings(cfg), strict=True):
        task = to_dict(_with_absolute_paths(worlds.task))
        named = {key: task[key] for key in lesson.get("task") or {}}
        absolute.append({**lesson, "teacher": from_anywhere(lesson["teacher"]), "task": named})
    return dataclasses.replace(cfg.algorithm, lessons=tuple(absolute))


def _with_absolute_paths(task: Any) -> Any:
    """Return a task's settings with absolute paths to its files and frozen policies."""
    files = named_files.named_files(task)
    paths: dict[str, Any] = {key: str(path.absolute()) for key, path in files.items()}
    for key in TASKS[task.name].frozen_policies:
        name = vars(task)[key]
        if isinstance(name, str):
            paths[key] = from_anywhere(name)
        elif name is not None:
            paths[key] = tuple(from_anywhere(policy) for policy in name)
    return dataclasses.replace(task, **paths)
