"""The sizes of a team, and its actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from torch import Tensor

from mqe.vec_env import MirrorImage, Planar, VecEnv

_Actor = TypeVar("_Actor")


class TeamSpec(NamedTuple):
    """Sizes and properties of the environment that a team is built for."""

    obs_sizes: tuple[int, ...]  # each agent's own
    action_sizes: tuple[int, ...]
    state_size: int
    state_type: str  # "EP" or "FP"
    mirror: MirrorImage | None = None  # if left and right are alike
    planar: Planar | None = None  # for a learned model of the worlds
    is_trained: bool = False  # whether the run starts with trained networks

    @property
    def num_agents(self) -> int:
        """Number of agents A."""
        return len(self.obs_sizes)

    @classmethod
    def of(cls, env: VecEnv) -> TeamSpec:
        """Return the specification of an environment's team."""
        return cls(
            tuple(env.obs_sizes),
            tuple(env.action_sizes),
            env.state_size,
            env.state_type,
            env.mirror,
            env.planar,
        )


def make_actors(
    make: Callable[[int, int], _Actor], spec: TeamSpec, *, is_shared: bool
) -> list[_Actor]:
    """Build one actor per agent by ``make(obs size, action size)``, or one shared by all.

    Raise ValueError if agents of different sizes would share an actor.
    """
    sizes = list(zip(spec.obs_sizes, spec.action_sizes, strict=True))
    if not is_shared:
        return [make(*size) for size in sizes]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"share_param needs agents of equal sizes, not {sizes}; set algorithm.share_param=false"
        )
    return [make(*sizes[0])] * len(sizes)


def team_rewards(rewards: Tensor, choice: str, num_values: int) -> Tensor:
    """Return the rewards (N, V) that are learned, from those of the agents (N, A).

    ``choice`` is the setting ``team_reward``. If rewards are the agents' own and the critic has
    one value, they are agent 0's, as in HARL.
    """
    if choice == "own":
        return rewards[:, :num_values]
    if choice == "mean":
        total = rewards.mean(1, keepdim=True)
    else:
        total = rewards.sum(1, keepdim=True)
    return total.expand(-1, num_values)
