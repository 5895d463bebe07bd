"""A collector: worlds and a team fill blocks of T decisions with transitions.

It knows neither processes nor pipes. Its caller has the weights and the blocks.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from harl_mapush import config
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.collectors.exchange import State
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


@dataclasses.dataclass(frozen=True)
class Identity:
    """The number of a collector in its run, as plain data."""

    number: int
    num_collectors: int
    num_starts: int = 0  # earlier starts of the run


class BlockReport(NamedTuple):
    """Statistics of a block, as plain values."""

    rewards: dict[str, float]  # means per agent and control step
    num_valid: float  # number of transitions in the means
    num_broken: float
    statistics: dict[str, float]  # means over the worlds' last finished episodes
    note: str | None  # a message about buffers of the simulator that grew


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

    def load(self, weights: Sequence[State], num_updates: int) -> None:
        """Act by other weights from now on. Raise RuntimeError for other shapes or names."""
        for actor, state in zip(self.team.unique_actors, weights, strict=True):
            actor.load_state_dict(state)
        self.team.num_updates = num_updates

    def collect(
        self, block: Transition, after_decision: Callable[[], object] = lambda: None
    ) -> BlockReport:
        """Fill a block (T, N, ...). Call ``after_decision`` after every decision."""
        self._memory.begin(block)
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
            after_decision()
        means = rewards.means()
        values = torch.stack([*means.values(), rewards.num_valid()]).tolist()
        named = dict(zip(means, values, strict=False))
        num_broken = self.num_steps * env.num_envs - values[-1]
        return BlockReport(named, values[-1], num_broken, env.statistics(), env.grow_buffers())

    def close(self) -> None:
        """Free the worlds."""
        self.env.close()


class _Memory:
    """Stands for a replay buffer in ``ReplayExperience``, and writes into a block."""

    def __init__(self, shape: ReplayShape) -> None:
        self.shape = shape
        self._rows: Iterator[tuple[Tensor, ...]] = iter(())

    def begin(self, block: Transition) -> None:
        """Write into ``block`` (T, N, ...) from now on."""
        self._rows = zip(*block, strict=True)

    def add(self, transition: Transition, ring: int = 0) -> None:
        """Copy the next decision. The worlds write their next step over the tensors."""
        for row, value in zip(next(self._rows), transition, strict=True):
            row.copy_(value)


def make_collector(settings: Mapping[str, Any], identity: Identity) -> Collector:
    """Build a collector from plain settings with a resolved simulator and device."""
    config.import_modules((settings.get("env") or {}).get("imports") or ())
    cfg, _ = config.resolve(settings, {})
    return build(cfg, identity)


def build(cfg: RunCfg, identity: Identity) -> Collector:
    """Build a collector with its worlds and its team. ``cfg`` comes from ``settled``."""
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
    spec = cfg.algorithm.team_spec(env)._replace(is_trained=runner.init_from is not None)
    team = cast(
        ReplayLearner, make_algorithm(cfg.algorithm, cfg.network, spec, env.device, seed % 2**63)
    )
    team.world_share = (first_world, cfg.env.num_envs)
    return Collector(env, team, runner.num_steps, staggered=runner.staggered_start)
