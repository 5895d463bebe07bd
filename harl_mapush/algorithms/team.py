"""A team's sizes, and its actors."""

from __future__ import annotations

from typing import NamedTuple

from harl_mapush.learning.networks import Actor, NetworkCfg
from mqe.vec_env import Mirror, VecEnv


class TeamSpec(NamedTuple):
    """Sizes of what a team sees and does."""

    obs_sizes: tuple[int, ...]  # each agent's own
    action_sizes: tuple[int, ...]
    state_size: int
    state_type: str  # "EP" or "FP"
    mirror: tuple[Mirror, Mirror] | None = None  # of an agent's obs and action, where left and right are alike

    @property
    def num_agents(self) -> int:
        """A."""
        return len(self.obs_sizes)

    @classmethod
    def of(cls, env: VecEnv) -> TeamSpec:
        """Read the sizes off an environment."""
        return cls(tuple(env.obs_sizes), tuple(env.action_sizes), env.state_size, env.state_type, env.mirror)


def make_actors(network: NetworkCfg, spec: TeamSpec, *, is_shared: bool) -> list[Actor]:
    """Build one actor an agent, or the same one for all, on the CPU; raise ValueError where sizes forbid sharing."""
    sizes = list(zip(spec.obs_sizes, spec.action_sizes, strict=True))
    if not is_shared:
        return [Actor(network, obs_size, action_size) for obs_size, action_size in sizes]
    if len(set(sizes)) > 1:
        raise ValueError(f"share_param needs agents of equal sizes, not {sizes}; set algorithm.share_param=false")
    return [Actor(network, *sizes[0])] * len(sizes)
