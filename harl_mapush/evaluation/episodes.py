"""Episodes by seed and number, bit-identical on a CPU in every batch.

Worlds come in blocks of ``blocks.SIZE``: a seed's world k is row k % SIZE in block k // SIZE.
Blocks are always played whole, with surplus worlds paused.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harl_mapush.config import RunCfg
from harl_mapush.evaluation.calculator import first_episodes
from harl_mapush.evaluation.policies import Policy, load_policy
from harl_mapush.evaluation.push_watcher import PushWatcher
from harl_mapush.process import seed_everything
from harl_mapush.runs.policy import TeamPolicy, make_team
from mqe.controllers.blocks import SIZE, ActiveWorlds, Blocks
from mqe.env.environment import MultiAgentEnv
from mqe.host_memory import exhaustion_named
from mqe.registry import make_env, resolve_sim

Columns = dict[str, NDArray[np.float64]]  # metrics of episodes by name
MOST_EPISODES = 1_000_000  # per seed
PUSHING = "pushing/"  # before the names of a watcher's measurements
Block = tuple[int, int]  # seed, and the block's number within the seed


@dataclass(frozen=True)
class Request:
    """A request for ``num_episodes`` episodes of one policy with each seed."""

    cfg: RunCfg  # about ``env.num_envs`` worlds are played at a time, in whole blocks
    seeds: tuple[int, ...]
    num_episodes: int
    folder: Path | None = None  # the checkpoint's; None if ``function`` is the policy
    function: str | None = None  # the name of a policy, or MODULE:FUNCTION
    is_watched: bool = False  # whether to measure the pushes, if there is an object


def play_request(request: Request) -> dict[int, Columns]:
    """Return a request's metrics by seed, in the order of worlds."""
    played: dict[Block, Columns] = {}
    with exhaustion_named(request.cfg.env.num_envs):
        for blocks in _jobs(request):
            played |= play(request, blocks)
    columns = {}
    for seed in request.seeds:
        columns[seed] = join_columns(
            [played[block] for block in sorted(played) if block[0] == seed]
        )
    return columns


@torch.no_grad()
def play(request: Request, blocks: Sequence[Block]) -> dict[Block, Columns]:
    """Play some of a request's blocks together and return each block's metrics."""
    cfg = replace(request.cfg, env=replace(request.cfg.env, num_envs=SIZE * len(blocks)))
    seed_everything(cfg.runner.seed)
    places = [(seed, SIZE * block + row) for seed, block in blocks for row in range(SIZE)]
    index = resolve_sim(cfg.sim)[1].index
    # Without device_index, CUDA would allocate memory on the first GPU as well.
    with torch.accelerator.device_index(index), _one_thread():
        env = make_env(cfg.env, cfg.sim, cfg.task, 0, places=places)
        try:
            worlds = ActiveWorlds(env.resting) if env.device.type == "cpu" else None
            policy = _policy(request, cfg, env, worlds, len(blocks))
            features = env.task.features
            if worlds is not None and features.use_blocks is not None:
                features.use_blocks(worlds)
            unused = torch.tensor(
                [number >= request.num_episodes for _, number in places], device=env.device
            )
            has_pushes = request.is_watched and env.scene.object is not None
            watchers = [PushWatcher(env)] if has_pushes else []
            episodes = first_episodes(env, policy, unused=unused, watchers=watchers)
            for watcher in watchers:
                for name, values in watcher.episodes().items():
                    episodes[PUSHING + name] = values
        finally:
            env.close()

    used = (~unused).cpu()
    columns = {name: values.cpu().double() for name, values in episodes.items()}
    return {
        block: {name: values[rows][used[rows]].numpy() for name, values in columns.items()}
        for block, rows in zip(blocks, torch.arange(len(places)).split(SIZE), strict=True)
    }


def _jobs(request: Request) -> Iterator[list[Block]]:
    """Yield the blocks that are played together, about ``env.num_envs`` worlds."""
    blocks = [
        (seed, block) for seed in request.seeds for block in range(-(-request.num_episodes // SIZE))
    ]
    blocks_per_job = -(-request.cfg.env.num_envs // SIZE)
    for start in range(0, len(blocks), blocks_per_job):
        yield blocks[start : start + blocks_per_job]


def _policy(
    request: Request, cfg: RunCfg, env: MultiAgentEnv, worlds: ActiveWorlds | None, num_blocks: int
) -> Policy:
    """Return the policy for ``env``, on a CPU with one block of worlds at a time.

    A recurrent or foreign team always computes all blocks, because each has its own memory.
    """
    if request.folder is not None:
        policy: Policy = make_team(request.folder, env)
        has_memory = not isinstance(policy, TeamPolicy) or policy.is_recurrent
    else:
        assert request.function is not None
        policy = load_policy(request.function, cfg, env)
        has_memory = hasattr(policy, "reset_memory")
    if worlds is None:
        return policy
    return _TeamBlocks(policy, num_blocks) if has_memory else Blocks(policy, worlds)


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
