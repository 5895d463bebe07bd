"""Worlds with several teams or objects behind one ``VecEnv``: an environment for each.

A simulator steps worlds with one model, so each part has its own simulator and a fraction of the
worlds. Missing robots are padded: their observations are zeros, so they take no part, and their
rewards and terminations are those of the present robots.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mqe.env.environment import MultiAgentEnv
from mqe.vec_env import TimeStep


class MixedTeams:
    """Several environments with their worlds one after the other. A is the largest team."""

    def __init__(self, parts: Sequence[MultiAgentEnv], labels: Sequence[str] | None = None) -> None:
        """Join ``parts``, named by ``labels`` in statistics, by default by their team sizes.

        Their observations and states must have equal sizes. Teams of unequal sizes need a presence
        component (``TeamSpec.presence``).
        """
        largest = max(parts, key=lambda part: part.num_agents)
        sizes = {part.num_agents for part in parts}
        assert largest.spec.presence is not None or len(sizes) == 1
        self.parts = tuple(parts)
        self.labels = tuple(labels or [str(part.num_agents) for part in parts])
        self.num_envs = sum(part.num_envs for part in parts)
        self.num_agents = largest.num_agents
        self.spec = largest.spec
        self.task = largest.task
        self.report = largest.report
        self.decision_period = largest.decision_period
        self.step_dt = largest.step_dt
        self.device = largest.device

    def reset(self, *, staggered: bool = False) -> tuple[Tensor, Tensor]:
        """Start a new episode everywhere. Return obs (N, A, O) and state (N, S)."""
        return self._joined([part.reset(staggered=staggered) for part in self.parts])

    def step(self, actions: Tensor) -> TimeStep:
        """Hold ``actions`` (N, A, U) for one decision. Actions of absent robots have no effect."""
        by_part = actions.split([part.num_envs for part in self.parts])
        steps = [
            part.step(part_actions[:, : part.num_agents])
            for part, part_actions in zip(self.parts, by_part, strict=True)
        ]
        return TimeStep(
            obs=self._padded([step.obs for step in steps]),
            state=torch.cat([step.state for step in steps]),
            reward=self._with_means([step.reward for step in steps]),
            terminated=torch.cat(
                [step.terminated[:, :1].expand(-1, self.num_agents) for step in steps]
            ),
            truncated=torch.cat([step.truncated for step in steps]),
            valid=torch.cat([step.valid for step in steps]),
            final_obs=self._padded([step.final_obs for step in steps]),
            final_state=torch.cat([step.final_state for step in steps]),
            info={
                name: self._with_means([step.info[name] for step in steps])
                for name in steps[0].info
                if all(name in step.info for step in steps)
            },
        )

    def record_broken_worlds(self) -> None:
        """Return None. Worlds of several parts are not recorded."""

    def grow_buffers(self) -> str | None:
        """Enlarge the simulators' overflowed contact buffers. Return messages, or None."""
        messages = [part.grow_buffers() for part in self.parts]
        return "; ".join(message for message in messages if message is not None) or None

    def statistics(self) -> dict[str, float]:
        """Return means over all parts' last episodes, and each part's as ``HEADLINE_of_LABEL``."""
        by_part = [part.statistics() for part in self.parts]
        merged = weighted_means(by_part)
        headline = [name for _, name in self.report.headline]
        for label, statistics in zip(self.labels, by_part, strict=True):
            for name in headline:
                merged[f"{name}_of_{label}"] = statistics[name]
        return merged

    def reset_statistics(self) -> None:
        """Forget finished episodes."""
        for part in self.parts:
            part.reset_statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state for a bit-exact resume."""
        named = zip(self.labels, self.parts, strict=True)
        return {label: part.state_dict() for label, part in named}

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Restore a ``state_dict``. Return its obs and state."""
        named = zip(self.labels, self.parts, strict=True)
        return self._joined([part.load_state_dict(state[label]) for label, part in named])

    def close(self) -> None:
        """Free the simulators."""
        for part in self.parts:
            part.close()

    def _joined(self, inputs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return self._padded([obs for obs, _ in inputs]), torch.cat([state for _, state in inputs])

    def _padded(self, obs: Sequence[Tensor]) -> Tensor:
        """Join observations (n, a, O), n worlds with a robots each, as (N, A, O), with zeros for
        absent robots.
        """
        pad = torch.nn.functional.pad
        return torch.cat([pad(x, (0, 0, 0, self.num_agents - x.shape[1])) for x in obs])

    def _with_means(self, rewards: Sequence[Tensor]) -> Tensor:
        """Join rewards (n, a), n worlds with a robots each, as (N, A), with the team's mean for
        absent robots.
        """
        rows = []
        for reward in rewards:
            lacking = self.num_agents - reward.shape[1]
            mean = reward.mean(dim=1, keepdim=True).expand(-1, lacking)
            rows.append(torch.cat((reward, mean), dim=1))
        return torch.cat(rows)


def weighted_means(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means over all episodes in ``parts``, each with means and ``num_episodes``.

    A metric without episodes is NaN.
    """
    merged: dict[str, float] = {"num_episodes": sum(part["num_episodes"] for part in parts)}
    for name in dict.fromkeys(name for part in parts for name in part if name != "num_episodes"):
        finite_parts = [part for part in parts if math.isfinite(part.get(name, math.nan))]
        num_episodes = sum(part["num_episodes"] for part in finite_parts)
        merged[name] = math.nan
        if num_episodes:
            total = sum(part[name] * part["num_episodes"] for part in finite_parts)
            merged[name] = total / num_episodes
    return merged
