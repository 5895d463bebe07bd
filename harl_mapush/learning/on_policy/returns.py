"""Returns and advantages as pure functions of (T, N, V) tensors, V values an environment (1, or
one an agent).
"""

from __future__ import annotations

import torch
from torch import Tensor


def compute_gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    continues: Tensor,
    cut: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Return advantages (T, N, V) by generalised advantage estimation (Schulman et al. 2016).

    ``values`` (T, N, V) are those of the state acted in. ``next_values`` (T, N, V) are those of the
    true next state: 0 after a termination, the value of the episode's last state after a time-out.
    ``continues`` (T, N, 1) is 0 where the episode ended. Where ``cut`` (T, N, 1) is 1 nothing is
    learned: the advantage is 0 and flows into nothing before it.
    """
    advantages = torch.empty_like(rewards)
    deltas = (rewards + gamma * next_values - values) * (1.0 - cut)
    carry = gamma * lam * continues
    running = torch.zeros_like(rewards[0])
    for t in reversed(range(rewards.shape[0])):
        running = deltas[t] + carry[t] * running
        advantages[t] = running
    return advantages


def compute_returns(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    continues: Tensor,
    cut: Tensor,
    gamma: float,
) -> Tensor:
    """Return discounted sums of rewards to the end of the episode or rollout, then
    ``next_values``; shapes as above.
    """
    returns = torch.empty_like(rewards)
    running = next_values[-1]
    for t in reversed(range(rewards.shape[0])):
        ahead = torch.where(continues[t] > 0.0, running, next_values[t])
        running = torch.where(cut[t] > 0.0, values[t], rewards[t] + gamma * ahead)
        returns[t] = running
    return returns


def compute_harl_gae(
    rewards: Tensor,
    values: Tensor,
    masks: Tensor,
    bad_masks: Tensor | None,
    gamma: float,
    lam: float,
) -> Tensor:
    """Return returns (T, N, V) as HARL's buffer does with GAE.

    ``values`` (T+1, N, V) are in reward units. ``masks`` (T+1, N, 1) are 0 where the environment
    was done,
    ``bad_masks`` 0 where it was truncated; index t+1 belongs to the step from t to t+1. With
    ``bad_masks`` (proper time
    limits) a truncated step's advantage is 0: its reward is dropped, and the value of its last
    state is not used.
    """
    returns = torch.empty_like(rewards)
    running = torch.zeros_like(rewards[0])
    for t in reversed(range(rewards.shape[0])):
        delta = rewards[t] + gamma * values[t + 1] * masks[t + 1] - values[t]
        running = delta + gamma * lam * masks[t + 1] * running
        if bad_masks is not None:
            running = bad_masks[t + 1] * running
        returns[t] = running + values[t]
    return returns


def compute_harl_returns(
    rewards: Tensor,
    values: Tensor,
    last_value: Tensor,
    masks: Tensor,
    bad_masks: Tensor | None,
    gamma: float,
) -> Tensor:
    """Return returns (T, N, V) as HARL's buffer does without GAE.

    ``last_value`` (N, V) is what the last return is bootstrapped from: HARL passes the critic's
    output there without denormalising it. ``values`` (T+1, N, V) in reward units stand in for the
    return of a truncated step.
    """
    returns = torch.empty_like(rewards)
    running = last_value
    for t in reversed(range(rewards.shape[0])):
        running = running * gamma * masks[t + 1] + rewards[t]
        if bad_masks is not None:
            running = running * bad_masks[t + 1] + (1.0 - bad_masks[t + 1]) * values[t]
        returns[t] = running
    return returns
