"""Episodes by seed and number, the same on a CPU whatever batch or process they are played in, bit
for bit.

Worlds come in blocks of ``blocks.SIZE``: world k of a seed has place k modulo that in its block. A
block is played whole, its worlds beyond the episodes that were asked for at rest.
"""

from __future__ import annotations

import copy
import importlib
import io
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.evaluation import evaluation_worlds
from harl_mapush.evaluation.calculator import Policy, first_episodes
from harl_mapush.evaluation.strict_protocol import StrictWatcher
from harl_mapush.evaluation.workers import run_jobs
from harl_mapush.memory_plan import check_memory, plan_playing, share_among
from harl_mapush.runs import checkpoint
from harl_mapush.runs.formats import OURS, Team, foreign
from harl_mapush.runs.policy import TeamPolicy, make_team
from harl_mapush.seeding import seed_everything
from mqe.config import ConfigError, merge, to_dict
from mqe.controllers.blocks import SIZE, ActiveWorlds, Blocks
from mqe.cores import num_cores
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env, resolve_sim

Columns = dict[str, NDArray[np.float64]]  # metrics of episodes by name
MOST_EPISODES = 1_000_000  # of a seed
Block = tuple[int, int]  # seed, and number of the block among those of the seed


@dataclass(frozen=True)
class Request:
    """Episodes of one policy in one kind of world: ``num_episodes`` of each of ``seeds``."""

    cfg: RunCfg
    seeds: tuple[int, ...]
    num_episodes: int
    folder: Path | None = None  # of the checkpoint that acts; None: ``function`` does
    function: str | None = None  # MODULE:FUNCTION, obs (N, A, O) to actions (N, A, U)
    is_strict: bool = False
    num_envs: int | None = None  # worlds at a time, in whole blocks; None: all


@dataclass(frozen=True)
class Job:
    """Some blocks of a request, as plain data."""

    request: int
    sections: dict[str, Any]
    blocks: tuple[Block, ...]
    num_episodes: int
    folder: str | None
    # Of the actors, as torch saves tensors on the CPU; None: the format reads its own.
    weights: bytes | None
    formats: tuple[str, ...]  # modules that register formats when they are imported
    function: str | None
    is_strict: bool
    devices: tuple[str, ...]  # worker k takes one of them


def play_requests(
    requests: Sequence[Request], num_workers: int, say: Callable[[str], None]
) -> Iterator[dict[int, Columns]]:
    """Yield the metrics of each request's episodes by seed, in the order of requests and of worlds.

    ``num_workers`` processes are spawned to play them; 0 plays them in this one.
    """
    jobs = [
        job
        for number, request in enumerate(requests)
        for job in _jobs(number, request, num_workers)
    ]
    largest = max(jobs, key=lambda job: len(job.blocks))
    cfg = requests[largest.request].cfg
    worlds = replace(cfg, env=replace(cfg.env, num_envs=SIZE * len(largest.blocks)))
    plan = plan_playing(worlds, *resolve_sim(cfg.sim))
    # Workers on one device at a time.
    num_beside = -(-min(num_workers, len(jobs)) // len(largest.devices))
    check_memory(share_among(plan, num_beside) if num_workers else plan)
    missing = [sum(job.request == number for job in jobs) for number in range(len(requests))]
    found: list[dict[Block, Columns]] = [{} for _ in requests]
    notes: set[str] = set()
    due = 0
    for number, (blocks, note) in run_jobs(play, jobs, num_workers, say):
        if note is not None and note not in notes:
            notes.add(note)
            say(f"Note: {note}.")
        request = jobs[number].request
        found[request] |= blocks
        missing[request] -= 1
        while due < len(requests) and missing[due] == 0:
            yield {
                seed: _joined([found[due][key] for key in sorted(found[due]) if key[0] == seed])
                for seed in requests[due].seeds
            }
            found[due] = {}
            due += 1


@torch.no_grad()
def play(job: Job, worker: int) -> tuple[dict[Block, Columns], str | None]:
    """Play a job's blocks; return the metrics of each, and a line about what is new to the team,
    if anything.
    """
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
    # Else the first GPU is in use as well.
    with (
        torch.accelerator.device_index(index),
        _one_thread(),
    ):
        env = make_env(cfg.env, cfg.sim, cfg.task, 0, places=places)
        try:
            worlds = ActiveWorlds(env.sim.resting) if env.device.type == "cpu" else None
            policy, note = _policy(job, cfg, env, worlds)
            if worlds is not None:
                env.task.use_blocks(worlds)
            unused = torch.tensor(
                [number >= job.num_episodes for _, number in places], device=env.device
            )
            if job.is_strict:
                watch = StrictWatcher(env, getattr(cfg.task, "goal_heading", None))
            else:
                watch = None
            episodes = first_episodes(env, policy, unused=unused, watch=watch)
        finally:
            env.close()
    used = (~unused).cpu()
    columns = {name: values.cpu().double() for name, values in episodes.items()}
    parts = {
        block: {name: values[rows][used[rows]].numpy() for name, values in columns.items()}
        for block, rows in zip(job.blocks, torch.arange(len(places)).split(SIZE), strict=True)
    }
    return parts, note


def check_request(seeds: Sequence[int], num_episodes: int | None, num_workers: int | None) -> None:
    """Raise ConfigError for flags that do not go together."""
    for flag, value in (("num_episodes", num_episodes), ("workers", num_workers)):
        if value is not None and value < 1:
            raise ConfigError(f"--{flag} {value}: must be at least 1")
    if num_episodes is not None and num_episodes > MOST_EPISODES:
        raise ConfigError(f"--num_episodes {num_episodes}: must be at most {MOST_EPISODES}")
    if len(set(seeds)) < len(seeds) or any(not 0 <= seed < 2**62 for seed in seeds):
        raise ConfigError(
            f"--seeds {' '.join(map(str, seeds))}: must be whole numbers from 0 on, each once"
        )


def load_function(name: str) -> Policy:
    """Return a user's function by ``MODULE:FUNCTION``; raise ConfigError where there is none."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"--policy {name!r}: say MODULE:FUNCTION, as in my_policies:straight")
    config.import_modules([module], "--policy")
    function = getattr(importlib.import_module(module), attribute, None)
    if not callable(function):
        raise ConfigError(f"--policy {name}: module {module} has no function {attribute}")
    return cast("Policy", function)


def _jobs(number: int, request: Request, num_workers: int) -> Iterator[Job]:
    """Cut a request into jobs: one, or one a worker, or as many as ``num_envs`` asks for."""
    blocks = [
        (seed, block) for seed in request.seeds for block in range(-(-request.num_episodes // SIZE))
    ]
    most = -(-len(blocks) // max(num_workers, 1))
    if request.num_envs is not None:
        most = min(most, -(-request.num_envs // SIZE))
    sections = to_dict(request.cfg)
    if num_workers and not request.cfg.sim.num_threads:
        threads = max(1, num_cores() // num_workers)
        sections = merge(sections, {"sim": {"num_threads": threads}})
    weights = None
    if request.folder is not None and checkpoint.format_of(request.folder) is OURS:
        buffer = io.BytesIO()
        torch.save(checkpoint.read_actors(request.folder), buffer)
        weights = buffer.getvalue()
    for start in range(0, len(blocks), most):
        yield Job(
            number,
            sections,
            tuple(blocks[start : start + most]),
            request.num_episodes,
            None if request.folder is None else str(request.folder),
            weights,
            tuple(kind.load_team.__module__ for kind in foreign()),
            request.function,
            request.is_strict,
            _devices(request.cfg),
        )


def _devices(cfg: RunCfg) -> tuple[str, ...]:
    """Return the devices that workers share: every GPU where just "cuda", or nothing, was asked
    for.
    """
    device = resolve_sim(cfg.sim)[1]
    if device.type == "cpu" or ":" in cfg.sim.device:
        return (str(device),)
    others = [f"cuda:{k}" for k in range(torch.cuda.device_count()) if k != device.index]
    return (str(device), *others)


def _policy(
    job: Job, cfg: RunCfg, env: MultiAgentEnv, worlds: ActiveWorlds | None
) -> tuple[Policy, str | None]:
    """Return what acts in ``env``, over blocks of ``worlds`` if there are any, and what is
    unfamiliar to it.
    """
    if job.folder is None:
        assert job.function is not None
        policy = _checked(load_function(job.function), job.function, env)
        return (policy if worlds is None else Blocks(policy, worlds)), None
    folder = Path(job.folder)
    if job.weights is None:
        weights = None
    else:
        weights = torch.load(io.BytesIO(job.weights), weights_only=True)
    team = make_team(cfg, folder, env, weights)
    policy = team if worlds is None else _in_blocks(team, worlds, len(job.blocks))
    return policy, evaluation_worlds.unfamiliar(folder, env)


def _in_blocks(team: Team, worlds: ActiveWorlds, num_blocks: int) -> Policy:
    """Return a policy that computes one block of worlds at a time; a recurrent team gets all
    worlds, for its memory.
    """
    if isinstance(team, TeamPolicy) and not team.is_recurrent:
        return Blocks(team, worlds)
    return _TeamBlocks(team, num_blocks)


class _TeamBlocks:
    """A team that decides for one block at a time, with a memory for each."""

    def __init__(self, team: Any, num_blocks: int) -> None:
        self._teams = [copy.copy(team) for _ in range(num_blocks)]

    def __call__(self, obs: Tensor) -> Tensor:
        return torch.cat(
            [team(block) for team, block in zip(self._teams, obs.split(SIZE), strict=True)]
        )


def _checked(function: Policy, name: str, env: MultiAgentEnv) -> Policy:
    """Return a user's function that raises ConfigError where it fails, or returns anything but
    actions.
    """

    def act(obs: Tensor) -> Tensor:
        try:
            actions = function(obs)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(
                f"--policy {name}: raised {what} ({at.filename}, line {at.lineno})"
            ) from error
        wanted = (len(obs), env.num_agents, max(env.action_sizes))
        if not isinstance(actions, Tensor) or actions.shape != wanted:
            what = tuple(actions.shape) if isinstance(actions, Tensor) else type(actions).__name__
            raise ConfigError(
                f"--policy {name}: returned {what} for observations {tuple(obs.shape)}; return a "
                "tensor of shape "
                f"{wanted}: worlds, agents, numbers in [-1, 1]"
            )
        return actions

    return act


@contextmanager
def _one_thread() -> Iterator[None]:
    """Make torch compute in this thread: several threads would split tensors elsewhere, and change
    last bits.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _joined(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def as_tensors(columns: Mapping[str, NDArray[np.float64]]) -> dict[str, Tensor]:
    """Return metrics as tensors, ``broken`` as bool."""
    return {
        name: torch.from_numpy(values) if name != "broken" else torch.from_numpy(values > 0.5)
        for name, values in columns.items()
    }
