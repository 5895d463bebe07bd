"""A collector: worlds and a team fill blocks of T decisions with transitions.

It knows neither processes nor pipes. Its caller sends weights and receives blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from harl_mapush import config
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.collectors.learner import ReplayLearner
from harl_mapush.config import RunCfg
from harl_mapush.learning.off_policy.experience import ReplayExperience
from harl_mapush.learning.off_policy.replay_buffer import ReplayShape, RingReplay, Transition
from harl_mapush.process import seed_everything
from harl_mapush.runner import RewardSums
from harl_mapush.runs import exported as exported  # reads policies of former releases
from mqe.registry import make_env
from mqe.vec_env import Share, VecEnv

# Episodes between the first ones of two starts: a resumed run plays new episodes.
EPISODES_A_START = 1 << 20
_SEEDS_A_START = 1_000_003

# Signs of life: the activity of a collector.
STARTING = "importing its libraries"
BUILDING = "building its worlds"
READY = "ready"
COLLECTING = "collecting"


@dataclasses.dataclass(frozen=True)
class Identity:
    """The number of a collector in its run, as plain data."""

    number: int
    num_collectors: int
    num_starts: int = 0  # earlier starts of the run


class Weights(NamedTuple):
    """One version of the actors' weights, on the host."""

    num_updates: int
    actors: list[dict[str, np.ndarray]]

    @classmethod
    def of(cls, actors: Sequence[nn.Module], num_updates: int) -> Weights:
        """Copy the weights of ``actors``. This waits for their device."""
        states = []
        for actor in actors:
            state = actor.state_dict()
            states.append({name: value.cpu().numpy().copy() for name, value in state.items()})
        return cls(num_updates, states)

    def load(self, actors: Sequence[nn.Module]) -> None:
        """Load the weights into ``actors``. Raise RuntimeError for other shapes or names."""
        for actor, state in zip(actors, self.actors, strict=True):
            actor.load_state_dict({name: torch.tensor(value) for name, value in state.items()})


class BlockReport(NamedTuple):
    """Statistics of a block, as plain values."""

    rewards: dict[str, float]  # means per agent and control step
    num_valid: float  # number of transitions in the means
    num_broken: float
    statistics: dict[str, float]  # means over the worlds' last finished episodes
    note: str | None  # a message about buffers of the simulator that grew


class Block(NamedTuple):
    """T decisions of a collector's N worlds, as arrays on the host."""

    arrays: tuple[np.ndarray, ...]  # the fields of ``Transition``, (T, N, ...)
    report: BlockReport

    def transitions(self, device: torch.device) -> list[Transition]:
        """Return the block's T transitions on ``device``. Each array is copied once."""
        tensors = [torch.from_numpy(array).to(device) for array in self.arrays]
        return [Transition(*decision) for decision in zip(*tensors, strict=True)]


class Collector:
    """The worlds and the acting team of one collector."""

    def __init__(
        self, env: VecEnv, team: ReplayLearner, num_steps: int, *, staggered: bool = True
    ) -> None:
        """Collect blocks of ``num_steps`` decisions from a new environment."""
        self.env = env
        self.team = team
        self.num_steps = num_steps
        self.staggered = staggered
        self._memory = _Memory(team.replay_shape(env.num_envs))
        self._experience = ReplayExperience(
            cast(RingReplay, self._memory),
            env.device,
            team.team_rewards,
            lambda transition, discounted: None,
            is_saved=False,
        )
        self._obs: Tensor | None = None

    @property
    def actors(self) -> list[nn.Module]:
        """The acting networks, without repetition."""
        return list(self.team.unique_actors)

    def load(self, weights: Weights) -> None:
        """Act by other weights from now on."""
        weights.load(self.actors)
        self.team.num_updates = weights.num_updates

    def collect(self, after_decision: Callable[[int], None] = lambda t: None) -> Block:
        """Return a new block. ``after_decision`` is called with the number of decisions so far."""
        if self._obs is None:
            self._obs, state = self.env.reset(staggered=self.staggered)
            self._experience.start(self._obs, state)
        env = self.env
        rewards = RewardSums(self.env)
        for t in range(self.num_steps):
            decision = self.team.act(self._obs)
            step = env.step(decision.actions)
            self._experience.add(t, self._obs, decision, step)
            rewards.add(step)
            self._obs = step.obs
            after_decision(t + 1)
        means = rewards.means()
        values = torch.stack([*means.values(), rewards.num_valid()]).tolist()
        named = dict(zip(means, values, strict=False))
        num_broken = self.num_steps * env.num_envs - values[-1]
        report = BlockReport(named, values[-1], num_broken, env.statistics(), env.grow_buffers())
        return Block(self._memory.take(), report)

    def close(self) -> None:
        """Free the worlds."""
        self.env.close()


class _Memory:
    """Stands for a replay buffer in ``ReplayExperience``, and keeps a block of decisions."""

    def __init__(self, shape: ReplayShape) -> None:
        self.shape = shape
        self._decisions: list[Transition] = []

    def add(self, transition: Transition, ring: int = 0) -> None:
        """Keep a copy on the host. The worlds write their next step over the tensors."""
        copies = [torch.empty_like(value, device="cpu").copy_(value) for value in transition]
        self._decisions.append(Transition(*copies))

    def take(self) -> tuple[np.ndarray, ...]:
        """Return the fields of all decisions since the last call, (T, N, ...)."""
        decisions = self._decisions
        self._decisions = []
        return tuple(torch.stack(values).numpy() for values in zip(*decisions, strict=True))


def make_collector(settings: Mapping[str, Any], identity: Identity) -> Collector:
    """Build a collector from plain settings with a resolved simulator and device."""
    config.import_modules((settings.get("env") or {}).get("imports") or ())
    cfg, _ = config.resolve(settings, {})
    return build(cfg, identity)


def build(cfg: RunCfg, identity: Identity) -> Collector:
    """Build a collector with its worlds and its team."""
    runner = cfg.runner
    num_envs = cfg.env.num_envs // identity.num_collectors
    first_world = identity.number * num_envs
    seed = runner.seed + identity.number + 1 + _SEEDS_A_START * identity.num_starts
    seed_everything(seed % 2**63)
    env = make_env(
        dataclasses.replace(cfg.env, num_envs=num_envs),
        cfg.sim,
        cfg.task,
        runner.seed,
        Share(first_world, identity.num_collectors),
        first_episode=EPISODES_A_START * identity.num_starts,
    )
    acting = cfg.algorithm.for_acting()
    spec = env.spec._replace(is_trained=runner.init_from is not None)
    team = cast(ReplayLearner, make_algorithm(acting, cfg.network, spec, env.device, seed % 2**63))
    team.world_share = (first_world, cfg.env.num_envs)
    return Collector(env, team, runner.num_steps, staggered=runner.staggered_start)
