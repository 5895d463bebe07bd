"""A team's actions without noise, by its actors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harl_mapush.algorithms.algorithm import Algorithm


@torch.no_grad()
def mean_actions(team: Algorithm, obs: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Any]:
    """Return actions (N, A, U) for obs (N, A, O), and a recurrent team's hidden states (A, N, R,
    H).
    """
    means = []
    after = []
    for agent in range(obs.shape[1]):
        actor: Any = team.networks[f"actor_agent{agent}"]
        rows = obs[:, agent, : actor.obs_size]
        if not getattr(actor, "is_recurrent", False):
            means.append(actor(rows))
            continue
        before = torch.zeros(len(obs), *actor.hidden_shape) if hidden is None else hidden[agent]
        mean, state = actor.unroll(rows.unsqueeze(0), before, torch.ones(1, len(obs)))
        means.append(mean[0])
        after.append(state[0])
    return torch.stack(means, dim=1), torch.stack(after) if after else None
