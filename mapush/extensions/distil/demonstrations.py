"""Demonstrations: observations of a student, and a teacher's actions for these observations.

R rows, N environments, A agents, O obs size, U action size, B batch rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harl_mapush.learning.collected import Decision, Experience
from mqe.vec_env import TeamSpec, TimeStep

# Key in ``TimeStep.info`` of a teacher's actions (N, A, U) for the observations before a decision.
TEACHER_ACTIONS = "teacher/actions"


class Demonstrations(Experience):
    """A ring of R rows on one device. A row has one decision for every environment."""

    def __init__(
        self,
        num_rows: int,
        num_envs: int,
        spec: TeamSpec,
        device: torch.device,
    ) -> None:
        """Allocate the ring."""
        shape = (num_rows, num_envs, spec.num_agents)
        self.obs = torch.zeros(*shape, spec.obs_size, device=device)
        self.actions = torch.zeros(*shape, spec.action_size, device=device)
        self.num_new = 0  # decisions of environments since the last update
        self._num_added = 0  # rows ever added

    def __len__(self) -> int:
        """Return the number of stored decisions."""
        return min(self._num_added, len(self.obs)) * self.obs.shape[1]

    def add(self, t: int, obs: Tensor, decision: Decision, step: TimeStep) -> None:
        """Store the obs (N, A, O) of a decision, and the teacher's actions."""
        row = self._num_added % len(self.obs)
        self.obs[row] = obs
        self.actions[row] = step.info[TEACHER_ACTIONS]
        self._num_added += 1
        self.num_new += len(obs)

    def rows(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the obs (B, A, O) and the teacher's actions (B, A, U) of decisions (B,)."""
        return self.obs.flatten(0, 1)[index], self.actions.flatten(0, 1)[index]

    def state_dict(self) -> dict[str, Any]:
        """Return the rows in use."""
        num_used = min(self._num_added, len(self.obs))
        return {
            "obs": self.obs[:num_used].clone(),
            "actions": self.actions[:num_used].clone(),
            "num_added": self._num_added,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``. Raise ValueError for other sizes."""
        num_used = min(state["num_added"], len(self.obs))
        for name in ("obs", "actions"):
            ring = getattr(self, name)
            if state[name].shape != (num_used, *ring.shape[1:]):
                raise ValueError(f"demonstrations have {name} of shape {tuple(state[name].shape)}")
            ring[:num_used] = state[name].to(ring.device)
        self._num_added = state["num_added"]
