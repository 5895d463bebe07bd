"""Small off-policy teams on a toy task."""

from __future__ import annotations

from typing import Any

import torch

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.algorithms.off_policy import OffPolicy
from harl_mapush.learning.off_policy.experience import ReplayExperience
from harl_mapush.learning.settings import NetworkCfg, OffPolicyCfg
from tests.support.toy import ToyEnv

# The off-policy algorithms, and those whose agents have actors of their own
NAMES = [name for name, entry in ALGORITHMS.items() if issubclass(entry.cfg, OffPolicyCfg)]
APART = [name for name in NAMES if not ALGORITHMS[name].cfg().share_param]
LIVELY: dict[str, Any] = {"death_rate": 0.05, "failure_rate": 0.02}
SMALL: dict[str, Any] = {
    "warmup": 64,
    "batch_size": 32,
    "buffer_size": 256,
    "update_ratio": 1 / 8,
}


def make(
    name: str,
    env: ToyEnv,
    network: NetworkCfg | None = None,
    *,
    is_trained: bool = False,
    **settings: Any,
) -> tuple[OffPolicy, Any]:
    torch.manual_seed(0)
    entry = ALGORITHMS[name]
    spec = env.spec._replace(is_trained=is_trained)
    team = entry.cls(entry.cfg(**settings), network or NetworkCfg((16,)), spec)
    experience = team.make_experience(1, env.num_envs)
    obs, state = env.reset()
    experience.start(obs, state)
    env.seen = obs  # type: ignore[attr-defined]
    assert isinstance(team, OffPolicy)
    return team, experience


def go(
    team: OffPolicy, experience: ReplayExperience, env: Any, blocks: int
) -> tuple[float, dict[str, torch.Tensor]]:
    """Collect and learn from ``blocks`` decisions. Return the mean reward and the last metrics."""
    total = 0.0
    metrics = {}
    for _ in range(blocks):
        decision = team.act(env.seen)
        step = env.step(decision.actions)
        experience.add(0, env.seen, decision, step)
        env.seen = step.obs
        metrics = team.update(experience) or metrics
        total += step.reward[step.valid].mean().item()
    return total / blocks, metrics


def returns_of_toy(
    name: str, rate: float, polyak: float, update_ratio: float, blocks: int
) -> tuple[float, float]:
    """Return a team's rewards before its first update and after ``blocks`` blocks."""
    env = ToyEnv(32)
    rates = {"learning_rate": rate, "critic_learning_rate": rate, "polyak": polyak, "gamma": 0.8}
    sizes = {"warmup": 640, "batch_size": 128, "update_ratio": update_ratio}
    team, experience = make(name, env, NetworkCfg((32, 32), activation="relu"), **rates, **sizes)
    at_random, _ = go(team, experience, env, 19)
    go(team, experience, env, blocks)
    learned, _ = go(team, experience, env, 20)
    return at_random, learned
