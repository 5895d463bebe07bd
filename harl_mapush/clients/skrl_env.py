"""Worlds under skrl's contract of multi-agent environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from skrl.envs.wrappers.torch.base import MultiAgentEnvWrapper  # pyright: ignore[reportMissingImports]
from torch import Tensor

from harl_mapush.clients.harl.harl_env import box
from harl_mapush.clients.worlds import ClientEnv, Worlds

ByAgent = dict[str, Tensor]


class SkrlEnv(MultiAgentEnvWrapper):
    """N worlds for skrl's agents and trainers; each agent's tensors are (N, ...).

    Worlds that ended begin their next episode in the same step, as skrl expects. ``infos`` have
    ``final_observations`` and ``final_states``, the last of the episode where one ended and the
    present ones elsewhere, ``broken`` (N, 1) where the simulation broke, which counts as a
    truncation, and the reward terms (N, A).
    """

    def __init__(self, worlds: Worlds) -> None:
        """Build the worlds."""
        client = ClientEnv(worlds)
        super().__init__(client)
        spec = client.env.spec
        self.client = client
        self._obs_sizes = dict(zip(client.agents, spec.obs_sizes, strict=True))
        self._observation_spaces = {name: box(size) for name, size in self._obs_sizes.items()}
        self._action_sizes = dict(zip(client.agents, spec.action_sizes, strict=True))
        self._action_spaces = {name: box(size, 1.0) for name, size in self._action_sizes.items()}
        self._state_spaces = {name: box(spec.state_size) for name in client.agents}
        self._state = torch.zeros(0)

    @property
    def num_envs(self) -> int:
        """Number of worlds."""
        return self.client.env.num_envs

    @property
    def num_agents(self) -> int:
        """Number of agents."""
        return len(self.client.agents)

    @property
    def max_num_agents(self) -> int:
        """Number of agents."""
        return len(self.client.agents)

    @property
    def possible_agents(self) -> list[str]:
        """Names of all agents."""
        return self.client.agents

    @property
    def agents(self) -> list[str]:
        """Names of all agents: none ever leaves."""
        return self.client.agents

    @property
    def state_spaces(self) -> Mapping[str, Any]:
        """Space of the critic's state of each agent."""
        return self._state_spaces

    @property
    def observation_spaces(self) -> Mapping[str, Any]:
        """Space of the observations of each agent."""
        return self._observation_spaces

    @property
    def action_spaces(self) -> Mapping[str, Any]:
        """Space of the actions of each agent."""
        return self._action_spaces

    def reset(self) -> tuple[ByAgent, dict[str, Any]]:
        """Start a new episode in every world whose episode has begun."""
        obs, self._state = self.client.reset()
        return self._observations(obs), {}

    def step(
        self, actions: Mapping[str, Tensor]
    ) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, dict[str, Any]]:
        """Apply the actions (N, U) of each agent, clipped to [-1, 1], for one decision."""
        step = self.client.step(self.client.join(actions, self.agents))
        self._state = step.state
        was_cut_off = step.was_cut_off.unsqueeze(1)
        infos: dict[str, Any] = {
            **step.info,
            "broken": ~step.valid.unsqueeze(1),
            "final_observations": self._observations(step.final_obs),
            "final_states": self._states(step.final_state),
        }
        return (
            self._observations(step.obs),
            self._by_agent(step.reward),
            self._by_agent(step.terminated),
            dict.fromkeys(self.possible_agents, was_cut_off),
            infos,
        )

    def state(self) -> dict[str, Tensor | None]:
        """Return the critic's state (N, S) of each agent."""
        return {**self._states(self._state)}

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """Return a picture (height, width, 3) of the first world."""
        return self.client.render()

    def close(self) -> None:
        """Free the simulator and the renderer."""
        self.client.close()

    def _observations(self, obs: Tensor) -> ByAgent:
        return {
            name: obs[:, i, : self._obs_sizes[name]] for i, name in enumerate(self.possible_agents)
        }

    def _states(self, state: Tensor) -> ByAgent:
        views = [state] * self.num_agents if state.dim() == 2 else state.unbind(dim=1)
        return dict(zip(self.possible_agents, views, strict=True))

    def _by_agent(self, values: Tensor) -> ByAgent:
        return dict(zip(self.possible_agents, values.unsqueeze(-1).unbind(dim=1), strict=True))
