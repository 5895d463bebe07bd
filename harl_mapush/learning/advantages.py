"""Advantages as upstream HARL normalises them, to the last digit on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from harl_mapush.learning.normalization import normalize_advantages_as_harl
from harl_mapush.learning.storage import Storage


def harl_advantages(storage: Storage, *, are_joint: bool) -> list[Tensor]:
    """Give every agent's advantages (T, N), normalised over the agent's own active entries or over everybody's.

    Sums run in HARL's order of entries: (T, N, A) where values are the agents' own, else (A, T, N).
    """
    weights = torch.stack([storage.weights(agent) for agent in range(storage.shape.num_agents)])
    advantages = storage.advantages.permute(2, 0, 1).expand_as(weights)
    if not are_joint:
        return [normalize_advantages_as_harl(own, active) for own, active in zip(advantages, weights, strict=True)]
    if storage.advantages.shape[-1] > 1:
        advantages, weights = (x.permute(1, 2, 0).contiguous() for x in (advantages, weights))
        return list(normalize_advantages_as_harl(advantages, weights).unbind(-1))
    return list(normalize_advantages_as_harl(advantages, weights))
