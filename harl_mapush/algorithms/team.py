"""The actors of a team."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from mqe.vec_env import TeamSpec

_Actor = TypeVar("_Actor")


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
    """Convert the agents' rewards (N, A) to learned ones (N, V).

    ``choice`` is the setting ``team_reward``. If agents have their own rewards and the critic has
    one value, agent 0's rewards count, as in HARL.
    """
    if choice == "own":
        return rewards[:, :num_values]
    if choice == "mean":
        total = rewards.mean(1, keepdim=True)
    else:
        total = rewards.sum(1, keepdim=True)
    return total.expand(-1, num_values)
