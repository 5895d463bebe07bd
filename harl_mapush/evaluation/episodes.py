"""Episodes by seed and number, bit-identical on a CPU in every batch and process.

Worlds come in blocks of ``blocks.SIZE``: a seed's world k is row k % SIZE in block k // SIZE.
Blocks are always played whole, with surplus worlds paused.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from harl_mapush.evaluation.workers import run_jobs
from harl_mapush.memory_plan import check_memory, plan_playing
from harl_mapush.process import seed_everything
from harl_mapush.runs import evaluation_worlds
from harl_mapush.runs.formats import Team, foreign
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

    cfg: RunCfg
    seeds: tuple[int, ...]
    num_episodes: int
    folder: Path | None = None  # the checkpoint's; None if ``function`` is the policy
    function: str | None = None  # the name of a policy, or MODULE:FUNCTION
    watchers: tuple[str, ...] = ()  # names; those without anything to measure here are left out
    num_envs: int | None = None  # worlds played at a time, in whole blocks; None: all


@dataclass(frozen=True)
class Job:
    """Some blocks of a request, as plain data for a worker process."""

    request: int
    sections: dict[str, Any]
    blocks: tuple[Block, ...]
    num_episodes: int
    folder: str | None
    formats: tuple[str, ...]  # modules that register formats when they are imported
    function: str | None
    watchers: tuple[str, ...]
    devices: tuple[str, ...]  # worker k uses device k modulo their number


def play_requests(
    requests: Sequence[Request], num_workers: int, say: Callable[[str], None]
) -> Iterator[dict[int, Columns]]:
    """Yield each request's metrics by seed, in the order of requests and worlds.

    ``num_workers`` new processes play the episodes. With 0 this process plays them.
    """
    jobs = [
        job
        for number, request in enumerate(requests)
        for job in _jobs(number, request, num_workers)
    ]
    _check_memory(requests, jobs, num_workers)

    missing = [sum(job.request == number for job in jobs) for number in range(len(requests))]
    measured_blocks: list[dict[Block, Columns]] = [{} for _ in requests]
    notes: set[str] = set()
    next_request = 0
    for number, (blocks, note) in run_jobs(play, jobs, num_workers, say):
        if note is not None and note not in notes:
            notes.add(note)
            say(f"Note: {note}.")
        request = jobs[number].request
        measured_blocks[request] |= blocks
        missing[request] -= 1

        while next_request < len(requests) and missing[next_request] == 0:
            yield _by_seed(measured_blocks[next_request], requests[next_request].seeds)
            measured_blocks[next_request] = {}
            next_request += 1


def _check_memory(requests: Sequence[Request], jobs: Sequence[Job], num_workers: int) -> None:
    """Raise ConfigError if the workers' largest jobs do not fit in memory together."""
    largest = max(jobs, key=lambda job: len(job.blocks))
    cfg = requests[largest.request].cfg
    worlds = replace(cfg, env=replace(cfg.env, num_envs=SIZE * len(largest.blocks)))
    plan = plan_playing(worlds, *resolve_sim(cfg.sim))
    if num_workers and plan.free is not None:
        workers_per_device = -(-min(num_workers, len(jobs)) // len(largest.devices))
        plan = plan._replace(free=plan.free // workers_per_device, setting="--workers")
    check_memory(plan)


@torch.no_grad()
def play(job: Job, worker: int) -> tuple[dict[Block, Columns], str | None]:
    """Play a job's blocks and return each block's metrics and a note for the user, or None."""
    config.import_modules(job.sections["env"]["imports"])
    for module in job.formats:
        importlib.import_module(module)
    device = job.devices[worker % len(job.devices)]
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
            policy, note = _policy(job, cfg, env, worlds)
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
    parts = {
        block: {name: values[rows][used[rows]].numpy() for name, values in columns.items()}
        for block, rows in zip(job.blocks, torch.arange(len(places)).split(SIZE), strict=True)
    }
    return parts, note


def _jobs(number: int, request: Request, num_workers: int) -> Iterator[Job]:
    """Split a request into jobs: one, or one per worker, or batches of ``num_envs`` worlds."""
    blocks = [
        (seed, block) for seed in request.seeds for block in range(-(-request.num_episodes // SIZE))
    ]
    blocks_per_job = -(-len(blocks) // max(num_workers, 1))
    if request.num_envs is not None:
        blocks_per_job = min(blocks_per_job, -(-request.num_envs // SIZE))
    sections = to_dict(request.cfg)
    if num_workers and not request.cfg.sim.num_threads:
        threads = max(1, num_cores() // num_workers)
        sections = merge(sections, {"sim": {"num_threads": threads}})
    for start in range(0, len(blocks), blocks_per_job):
        yield Job(
            number,
            sections,
            tuple(blocks[start : start + blocks_per_job]),
            request.num_episodes,
            None if request.folder is None else str(request.folder),
            tuple(kind.load_team.__module__ for kind in foreign()),
            request.function,
            request.watchers,
            _devices(request.cfg),
        )


def _devices(cfg: RunCfg) -> tuple[str, ...]:
    """Return the devices of the workers: all GPUs, unless the settings name one."""
    device = resolve_sim(cfg.sim)[1]
    if device.type == "cpu" or ":" in cfg.sim.device:
        return (str(device),)
    others = [f"cuda:{k}" for k in range(torch.cuda.device_count()) if k != device.index]
    return (str(device), *others)


def _policy(
    job: Job, cfg: RunCfg, env: MultiAgentEnv, worlds: ActiveWorlds | None
) -> tuple[Policy, str | None]:
    """Return the policy for ``env``, and a note on differences from its training, or None."""
    if job.folder is None:
        assert job.function is not None
        policy = load_policy(job.function, cfg, env)
        if worlds is None:
            return policy, None
        if hasattr(policy, "reset_memory"):
            return _TeamBlocks(policy, len(job.blocks)), None
        return Blocks(policy, worlds), None

    folder = Path(job.folder)
    policy = team = make_team(cfg, folder, env)
    if worlds is not None:
        policy = _in_blocks(team, worlds, len(job.blocks))
    return policy, evaluation_worlds.unfamiliar(folder, env)


def _in_blocks(team: Team, worlds: ActiveWorlds, num_blocks: int) -> Policy:
    """Return ``team`` as a policy with one block of worlds at a time.

    A recurrent or foreign team always computes all blocks, because each has its own memory.
    """
    if isinstance(team, TeamPolicy) and not team.is_recurrent:
        return Blocks(team, worlds)
    return _TeamBlocks(team, num_blocks)


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


def _by_seed(blocks: Mapping[Block, Columns], seeds: Sequence[int]) -> dict[int, Columns]:
    """Join each seed's blocks in the order of their numbers."""
    joined = {}
    for seed in seeds:
        parts = [blocks[block] for block in sorted(blocks) if block[0] == seed]
        joined[seed] = join_columns(parts)
    return joined


def join_columns(parts: Sequence[Columns]) -> Columns:
    """Concatenate metrics by name."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def as_tensors(columns: Mapping[str, NDArray[np.float64]]) -> dict[str, Tensor]:
    """Return the metrics as tensors, with ``broken`` as bools."""
    tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
    tensors["broken"] = tensors["broken"] > 0.5
    return tensors
