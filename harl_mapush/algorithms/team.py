"""A team's sizes, and its actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from mqe.vec_env import MirrorImage, Planar, VecEnv

_Actor = TypeVar("_Actor")


class TeamSpec(NamedTuple):
    """What a team is built for: the sizes of its observations, states and actions, and how it
    starts.
    """

    obs_sizes: tuple[int, ...]  # each agent's own
    action_sizes: tuple[int, ...]
    state_size: int
    state_type: str  # "EP" or "FP"
    mirror: MirrorImage | None = None  # where left and right are alike
    planar: Planar | None = None  # what a learned model of the worlds needs to know
    is_trained: bool = False  # the run starts from trained networks (``Algorithm.networks``)

    @property
    def num_agents(self) -> int:
        """A."""
        return len(self.obs_sizes)

    @classmethod
    def of(cls, env: VecEnv) -> TeamSpec:
        """Read the sizes off an environment."""
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
    """Build one actor an agent by ``make(obs size, action size)``, or the same one for all.

    Raises ValueError where sizes forbid sharing.
    """
    sizes = list(zip(spec.obs_sizes, spec.action_sizes, strict=True))
    if not is_shared:
        return [make(*size) for size in sizes]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"share_param needs agents of equal sizes, not {sizes}; set algorithm.share_param=false"
        )
    return [make(*sizes[0])] * len(sizes)
