"""The toy of ``toy.py`` with a state that a learned model can predict: the clock, then every
agent's position.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.support.toy import ToyEnv


class ToyPlanar:
    """What a model needs to know of it: the time, and each robot's place."""

    world_names: tuple[str, ...] = ("time",)
    robot_names: tuple[str, ...] = ("x", "y")

    def __init__(self, num_robots: int, corner: Tensor, num_kinds: int = 1) -> None:
        self.num_robots = num_robots
        self.corner = corner
        self.kinds = torch.eye(num_robots, num_kinds)[:, 1:]

    def split(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return state[..., :1], state[..., 1:].unflatten(-1, (self.num_robots, -1))

    def tidy(self, state: Tensor) -> Tensor:
        return state

    def observe(self, state: Tensor) -> Tensor:
        time, position = self.split(state)
        return torch.cat(
            (position - self.corner, time.unsqueeze(1).expand(-1, self.num_robots, -1)), dim=-1
        )

    def judge(self, state: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
        _, position = self.split(next_state)
        return 1.0 - (position - self.corner).norm(dim=-1), torch.zeros(
            len(state), dtype=torch.bool
        )


class PlanarToyEnv(ToyEnv):
    """A toy whose state is its clock and positions."""

    def __init__(self, num_envs: int = 16, num_agents: int = 2, **lively: Any) -> None:
        super().__init__(num_envs, num_agents, **lively)
        self.spec = self.spec._replace(planar=ToyPlanar(num_agents, self.corner))

    def _see(self) -> tuple[Tensor, Tensor]:
        obs, state = super()._see()
        return obs, state.roll(1, dims=-1)
