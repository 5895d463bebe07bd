"""Episodes by seed and number, bit-identical on a CPU in every batch and process.

Worlds come in blocks of ``blocks.SIZE``: a seed's world k is row k % SIZE in block k // SIZE.
Blocks are always played whole, with surplus worlds paused.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.evaluation.calculator import first_episodes
from harl_mapush.evaluation.policies import Policy, load_policy
from harl_mapush.evaluation.watchers import WATCHERS
from harl_mapush.evaluation.watchers.watcher import Goal
from harl_mapush.evaluation.workers import run_jobs, worker_number
from harl_mapush.memory_plan import check_memory, plan_playing
from harl_mapush.process import seed_everything
from harl_mapush.runs.formats import foreign
from harl_mapush.runs.policy import TeamPolicy, make_team
from mqe.config import merge, to_dict
from mqe.controllers.blocks import SIZE, ActiveWorlds, Blocks
from mqe.cores import num_cores
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env, resolve_sim

Columns = dict[str, NDArray[np.float64]]  # metrics of episodes by name
MOST_EPISODES = 1_000_000  # per seed
Block = tuple[int, int]  # seed, and the block's number within the seed


@dataclass(frozen=True)
class Request:
    """A request for ``num_episodes`` episodes of one policy with each seed."""

    cfg: RunCfg  # about ``env.num_envs`` worlds are played at a time, in whole blocks
    seeds: tuple[int, ...]
    num_episodes: int
    folder: Path | None = None  # the checkpoint's; None if ``function`` is the policy
    function: str | None = None  # the name of a policy, or MODULE:FUNCTION
    watchers: tuple[str, ...] = ()  # names; those without anything to measure here are left out


@dataclass(frozen=True)
class Job:
    """The blocks of worlds that one worker process plays, and all it needs to play them."""

    sections: dict[str, Any]
    blocks: tuple[Block, ...]
    num_episodes: int
    folder: str | None
    formats: tuple[str, ...]  # modules that register formats when they are imported
    function: str | None
    watchers: tuple[str, ...]
    devices: tuple[str, ...]  # of the workers in turn


def play_request(request: Request, num_workers: int) -> dict[int, Columns]:
    """Return a request's metrics by seed, in the order of worlds.

    ``num_workers`` new processes play the episodes. With 0 this process plays them.
    """
    jobs = list(_jobs(request, num_workers))
    _check_memory(request.cfg, jobs, num_workers)
    blocks: dict[Block, Columns] = {}
    for _, part in run_jobs(play, jobs, num_workers):
        blocks |= part
    columns = {}
    for seed in request.seeds:
        columns[seed] = join_columns(
            [blocks[block] for block in sorted(blocks) if block[0] == seed]
        )
    return columns


def _check_memory(cfg: RunCfg, jobs: Sequence[Job], num_workers: int) -> None:
    """Raise ConfigError if the workers' largest jobs do not fit in memory together."""
    num_blocks = max(len(job.blocks) for job in jobs)
    worlds = replace(cfg, env=replace(cfg.env, num_envs=SIZE * num_blocks))
    plan = plan_playing(worlds, *resolve_sim(cfg.sim))
    if num_workers and plan.free is not None:
        num_devices = len(jobs[0].devices)
        workers_per_device = -(-min(num_workers, len(jobs)) // num_devices)
        plan = plan._replace(free=plan.free // workers_per_device, setting="--workers")
    check_memory(plan)


@torch.no_grad()
def play(job: Job) -> dict[Block, Columns]:
    """Play a job's blocks and return each block's metrics."""
    config.import_modules(job.sections["env"]["imports"])
    for module in job.formats:
        importlib.import_module(module)
    device = job.devices[worker_number() % len(job.devices)]
    sections = merge(
        job.sections, {"env": {"num_envs": SIZE * len(job.blocks)}, "sim": {"device": device}}
    )
    cfg, _ = config.resolve(sections, {})
    seed_everything(cfg.runner.seed)
    places = [(seed, SIZE * block + row) for seed, block in job.blocks for row in range(SIZE)]
    index = resolve_sim(cfg.sim)[1].index
    # Without device_index, CUDA would allocate memory on the first GPU as well.
    with torch.accelerator.device_index(index), _one_thread():
        kinds = {name: WATCHERS[name] for name in job.watchers}
        senses_parts = any(kind.senses_parts for kind in kinds.values())
        env = make_env(cfg.env, cfg.sim, cfg.task, 0, places=places, senses_parts=senses_parts)
        try:
            worlds = ActiveWorlds(env.resting) if env.device.type == "cpu" else None
            policy = _policy(job, cfg, env, worlds)
            features = env.task.features
            if worlds is not None and features.use_blocks is not None:
                features.use_blocks(worlds)
            unused = torch.tensor(
                [number >= job.num_episodes for _, number in places], device=env.device
            )
            goal = Goal(features.success_radius, features.heading_error)
            supported = {name: kind for name, kind in kinds.items() if kind.supports(env)}
            watchers = {name: kind.build(env, goal) for name, kind in supported.items()}
            episodes = first_episodes(env, policy, unused=unused, watchers=list(watchers.values()))
            for name, watcher in watchers.items():
                for measurement, values in watcher.episodes().items():
                    episodes[f"{name}/{measurement}"] = values
        finally:
            env.close()

    used = (~unused).cpu()
    columns = {name: values.cpu().double() for name, values in episodes.items()}
    return {
        block: {name: values[rows][used[rows]].numpy() for name, values in columns.items()}
        for block, rows in zip(job.blocks, torch.arange(len(places)).split(SIZE), strict=True)
    }


def _jobs(request: Request, num_workers: int) -> Iterator[Job]:
    """Split a request into jobs of at most ``env.num_envs`` worlds, evenly over the workers."""
    blocks = [
        (seed, block) for seed in request.seeds for block in range(-(-request.num_episodes // SIZE))
    ]
    blocks_per_job = -(-len(blocks) // max(num_workers, 1))
    blocks_per_job = min(blocks_per_job, -(-request.cfg.env.num_envs // SIZE))
    sections = to_dict(request.cfg)
    if num_workers and not request.cfg.sim.num_threads:
        threads = max(1, num_cores() // num_workers)
        sections = merge(sections, {"sim": {"num_threads": threads}})
    devices = _devices(request.cfg)[: max(num_workers, 1)]
    for start in range(0, len(blocks), blocks_per_job):
        yield Job(
            sections,
            tuple(blocks[start : start + blocks_per_job]),
            request.num_episodes,
            None if request.folder is None else str(request.folder),
            tuple(kind.load_team.__module__ for kind in foreign()),
            request.function,
            request.watchers,
            devices,
        )


def _devices(cfg: RunCfg) -> tuple[str, ...]:
    """Return the devices of the workers: all GPUs, unless the settings name one."""
    device = resolve_sim(cfg.sim)[1]
    if device.type == "cpu" or ":" in cfg.sim.device:
        return (str(device),)
    others = [f"cuda:{k}" for k in range(torch.cuda.device_count()) if k != device.index]
    return (str(device), *others)


def _policy(job: Job, cfg: RunCfg, env: MultiAgentEnv, worlds: ActiveWorlds | None) -> Policy:
    """Return the policy for ``env``, on a CPU with one block of worlds at a time.

    A recurrent or foreign team always computes all blocks, because each has its own memory.
    """
    if job.folder is not None:
        policy: Policy = make_team(Path(job.folder), env)
        has_memory = not isinstance(policy, TeamPolicy) or policy.is_recurrent
    else:
        assert job.function is not None
        policy = load_policy(job.function, cfg, env)
        has_memory = hasattr(policy, "reset_memory")
    if worlds is None:
        return policy
    return _TeamBlocks(policy, len(job.blocks)) if has_memory else Blocks(policy, worlds)


class _TeamBlocks:
    """A team with one block of worlds at a time and a memory for each block."""

    def __init__(self, team: Any, num_blocks: int) -> None:
        self._teams = [copy.copy(team) for _ in range(num_blocks)]

    def __call__(self, obs: Tensor) -> Tensor:
        return torch.cat(
            [team(block) for team, block in zip(self._teams, obs.split(SIZE), strict=True)]
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Context manager: limit torch to one thread. A split over threads changes the last bits of
    sums.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def join_columns(parts: Sequence[Columns]) -> Columns:
    """Concatenate metrics by name."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def as_tensors(columns: Mapping[str, NDArray[np.float64]]) -> dict[str, Tensor]:
    """Return the metrics as tensors, with ``broken`` as bools."""
    tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
    tensors["broken"] = tensors["broken"] > 0.5
    return tensors
