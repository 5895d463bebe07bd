"""Worlds with results on a device other than the host, and free steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mqe.vec_env import TeamSpec, TimeStep


class PlacedEnv:
    """Returns constant results at every step.

    On torch's device ``meta`` a tensor has no numbers, so every copy to the host raises.
    """

    decision_period = 5
    step_dt = 0.02
    max_episode_length = 1000

    def __init__(self, num_envs: int, num_agents: int, device: str, done_rate: float = 0.0) -> None:
        self.num_envs = num_envs
        self.num_agents = num_agents
        self.device = torch.device(device)
        self.spec = TeamSpec((10,) * num_agents, (3,) * num_agents, 17, "EP")
        team = (num_envs, num_agents)
        made: dict[str, Any] = {"device": self.device}
        self._obs = torch.ones(*team, 10, **made)
        self._state = torch.ones(num_envs, 17, **made)
        ended = torch.zeros(num_envs, dtype=torch.bool, **made)
        ended[: round(done_rate * num_envs)] = True
        terms = {f"reward/term{i}": torch.ones(*team, **made) for i in range(7)}
        self._step = TimeStep(
            self._obs,
            self._state,
            torch.ones(*team, **made),
            torch.zeros(*team, dtype=torch.bool, **made),
            ended,
            torch.ones(num_envs, dtype=torch.bool, **made),
            self._obs.clone(),
            self._state.clone(),
            terms,
        )

    def reset(self, *, staggered: bool = False) -> tuple[Tensor, Tensor]:
        return self._obs, self._state

    def restart(self, mask: Tensor, was_reset: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self._obs, self._state

    def step(self, actions: Tensor) -> TimeStep:
        assert actions.shape == (self.num_envs, self.num_agents, 3)
        assert actions.device.type == self.device.type
        return self._step

    def statistics(self) -> dict[str, float]:
        return {"num_episodes": 0}

    def grow_buffers(self) -> None:
        return None

    def close(self) -> None:
        return None
