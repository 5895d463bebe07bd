"""A toy for learners: points push a mass to a goal, learnable in seconds, with time-outs, deaths
and failures.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mqe.vec_env import TeamSpec, TimeStep

_LENGTH = 20  # decisions an episode


class ToyEnv:
    """Agent a sees its offset from its own corner of a square and is rewarded near it. The team
    shares a state.
    """

    def __init__(
        self,
        num_envs: int = 64,
        num_agents: int = 2,
        state_type: str = "EP",
        obs_sizes: tuple[int, ...] = (),
        action_sizes: tuple[int, ...] = (),
        death_rate: float = 0.0,
        failure_rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.num_envs = num_envs
        self.num_agents = num_agents
        self.spec = TeamSpec(
            obs_sizes=obs_sizes or (3,) * num_agents,
            action_sizes=action_sizes or (2,) * num_agents,
            state_size=2 * num_agents + 1 + (num_agents if state_type == "FP" else 0),
            state_type=state_type,
        )
        self.decision_period = 2
        self.step_dt = 0.02
        self.device = torch.device("cpu")
        self.death_rate = death_rate
        self.failure_rate = failure_rate
        self.generator = torch.Generator().manual_seed(seed)
        angle = torch.arange(num_agents) * 2.4
        self.corner = torch.stack([angle.cos(), angle.sin()], dim=1)

    def reset(self, *, staggered: bool = False) -> tuple[Tensor, Tensor]:
        self.position = self._draw(self.num_envs, self.num_agents, 2) * 2.0 - 1.0
        self.clock = (self._draw(self.num_envs) * _LENGTH).long()
        self.dead = torch.zeros(self.num_envs, self.num_agents, dtype=torch.bool)
        return self._see()

    def step(self, actions: Tensor) -> TimeStep:
        move = torch.zeros_like(self.position)
        move[..., : actions.shape[-1]] = actions[..., :2].clamp(-1.0, 1.0) * 0.3
        self.position = self.position + move * ~self.dead.unsqueeze(-1)
        self.clock = self.clock + 1
        reward = 1.0 - (self.position - self.corner).norm(dim=-1)
        self.dead = self.dead | (self._draw(self.num_envs, self.num_agents) < self.death_rate)
        valid = self._draw(self.num_envs) >= self.failure_rate
        terminated = self.dead.clone()
        truncated = self.clock >= _LENGTH
        done = terminated.all(1) | truncated | ~valid
        final_obs, final_state = self._see()
        fresh = self._draw(self.num_envs, self.num_agents, 2) * 2.0 - 1.0
        self.position = torch.where(done[:, None, None], fresh, self.position)
        self.clock = torch.where(done, 0, self.clock)
        self.dead = self.dead & ~done.unsqueeze(1)
        obs, state = self._see()
        info = {"reward/near": reward}
        return TimeStep(
            obs, state, reward, terminated, truncated, valid, final_obs, final_state, info
        )

    def state_dict(self) -> dict[str, Any]:
        state = {"position": self.position, "clock": self.clock, "dead": self.dead}
        return {name: value.clone() for name, value in state.items()} | {
            "generator": self.generator.get_state()
        }

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Tensor, Tensor]:
        for name in ("position", "clock", "dead"):
            setattr(self, name, state[name].clone())
        self.generator.set_state(state["generator"])
        return self._see()

    def grow_buffers(self) -> None:
        return None

    def statistics(self) -> dict[str, float]:
        return {}

    def reset_statistics(self) -> None: ...

    def close(self) -> None: ...

    def _draw(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator)

    def _see(self) -> tuple[Tensor, Tensor]:
        time = (self.clock.float() / _LENGTH)[:, None, None].expand(-1, self.num_agents, 1)
        inputs = torch.cat([self.position - self.corner, time], dim=-1)
        obs = torch.zeros(self.num_envs, self.num_agents, self.spec.obs_size)
        for i, size in enumerate(self.spec.obs_sizes):
            obs[:, i, : min(size, 3)] = inputs[:, i, :size]
        state = torch.cat([self.position.flatten(1), time[:, 0]], dim=1)
        if self.spec.state_type == "EP":
            return obs, state
        one_hot = torch.eye(self.num_agents).expand(self.num_envs, -1, -1)
        return obs, torch.cat([state.unsqueeze(1).expand(-1, self.num_agents, -1), one_hot], dim=-1)
