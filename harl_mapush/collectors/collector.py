"""A collector: worlds and a team that fill blocks of transitions.

It is independent of processes, pipes and queues. Its caller carries blocks and weights between
processes or machines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from harl_mapush import config
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.collectors.learner import ReplayLearner
from harl_mapush.collectors.shared_memory import BlockLayout
from harl_mapush.config import RunCfg
from harl_mapush.learning.off_policy.experience import ReplayExperience
from harl_mapush.learning.off_policy.replay_buffer import ReplayShape, RingReplay, Transition
from harl_mapush.process import seed_everything
from harl_mapush.runner import RewardSums
from mqe.registry import make_env
from mqe.vec_env import Share, VecEnv

# Episodes between the first ones of two starts, so that a restarted collector plays new ones.
EPISODES_A_START = 1 << 20
_SEEDS_A_START = 1_000_003


@dataclasses.dataclass(frozen=True)
class Identity:
    """The number of a collector among those of a run, as plain data."""

    number: int
    num_collectors: int
    num_starts: int = 0  # earlier starts of the collector with this number


class BlockReport(NamedTuple):
    """Statistics of a block, as plain numbers."""

    rewards: dict[str, float]  # means per agent and control step
    num_valid: float  # number of transitions of the means
    num_broken: float
    statistics: dict[str, float]  # means over the worlds' last finished episodes
    note: str | None  # a message about buffers of the simulator that grew


class Collector:
    """A share of the run's worlds, and the team that acts in it."""

    def __init__(
        self, env: VecEnv, team: ReplayLearner, num_steps: int, *, staggered: bool = True
    ) -> None:
        """Collect blocks of ``num_steps`` decisions from an environment that was not yet reset."""
        self.env = env
        self.team = team
        self.staggered = staggered
        shape = team.replay_shape(env.num_envs)
        self.layout = BlockLayout(num_steps, shape)
        self._writer = _Writer(shape, self.layout)
        self._experience = ReplayExperience(
            cast(RingReplay, self._writer),
            env.device,
            team.team_rewards,
            lambda transition, discounted: None,
            is_saved=False,
        )
        self._obs: Tensor | None = None

    @property
    def actors(self) -> list[nn.Module]:
        """The networks that act, without repetition."""
        return list(self.team.unique_actors)

    def collect(
        self, block: Tensor, after_decision: Callable[[int], None] = lambda t: None
    ) -> BlockReport:
        """Fill a block (bytes); call ``after_decision`` with the number of decisions so far."""
        if self._obs is None:
            self._obs, state = self.env.reset(staggered=self.staggered)
            self._experience.start(self._obs, state)
        env = self.env
        rewards = RewardSums(self.env)
        self._writer.block = block
        for t in range(self.layout.num_steps):
            decision = self.team.act(self._obs)
            step = env.step(decision.actions)
            self._writer.t = t
            self._experience.add(t, self._obs, decision, step)
            rewards.add(step)
            self._obs = step.obs
            after_decision(t + 1)
        means = rewards.means()
        values = torch.stack([*means.values(), rewards.num_valid()]).tolist()
        num_broken = self.layout.num_transitions - values[-1]
        named = dict(zip(means, values, strict=False))
        return BlockReport(named, values[-1], num_broken, env.statistics(), env.grow_buffers())

    def close(self) -> None:
        """Free the worlds."""
        self.env.close()


class _Writer:
    """A replay buffer for ``ReplayExperience`` that writes transitions into a block."""

    block: Tensor
    t = 0

    def __init__(self, shape: ReplayShape, layout: BlockLayout) -> None:
        self.shape = shape
        self._layout = layout

    def add(self, transition: Transition, ring: int = 0) -> None:
        self._layout.write(self.block, self.t, transition)


def make_collector(settings: Mapping[str, Any], identity: Identity) -> Collector:
    """Build a collector from plain settings whose simulator and device are resolved."""
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
