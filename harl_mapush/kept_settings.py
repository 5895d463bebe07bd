"""The settings stored in a run's folder, and the run's record."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harl_mapush.config import RunCfg
from harl_mapush.machine import Machine
from harl_mapush.parts import Parts
from harl_mapush.runs import exported, named_files, provenance
from harl_mapush.runs.evaluation_worlds import digest_of_gaits
from harl_mapush.runs.record import RunRecord
from mqe.config import to_dict
from mqe.controllers.gait import from_anywhere
from mqe.registry import TASKS
from mqe.world.robots import MODELS


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
        algorithm=_with_absolute_teacher(cfg.algorithm),
        runner=dataclasses.replace(
            cfg.runner,
            torch_threads=torch.get_num_threads(),
            init_from=None if weights is None else from_anywhere(weights),
        ),
        logger=dataclasses.replace(cfg.logger, out_dir=None),
    )


def make_record(cfg: RunCfg, folder: Path, parts: Parts, device: torch.device) -> RunRecord:
    """Return a run's record with the stored settings ``cfg``."""
    task = parts.env.task
    networks = parts.algorithm.networks
    actors = [networks[f"actor_agent{i}"] for i in range(parts.env.num_agents)]
    return RunRecord(
        folder,
        to_dict(cfg),
        provenance.describe(
            str(device),
            task.features.reward_weights,
            named_files.digests(cfg.task, cfg.algorithm.teacher),
        ),
        digest_of_gaits(cfg),
        partial(exported.export, cfg=cfg, actors=actors, task=task),
        partial(named_files.keep, task=cfg.task),
    )


def _with_absolute_teacher(algorithm: Any) -> Any:
    """Return an algorithm's settings with the absolute path to its teacher, if it has one."""
    if algorithm.teacher is None:
        return algorithm
    return dataclasses.replace(algorithm, teacher=from_anywhere(algorithm.teacher))


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
