"""One world under PettingZoo's contract of parallel environments."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pettingzoo import ParallelEnv  # pyright: ignore[reportMissingImports]

from harl_mapush.clients.harl.harl_env import box
from harl_mapush.clients.worlds import ClientEnv, Worlds, numpy_of
from mqe.config import ConfigError, unknown
from mqe.vec_env import TimeStep

Array = NDArray[np.float32]
Dicts = tuple[
    dict[str, Array], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
]
RENDER_MODES = ("rgb_array",)


class PettingZooEnv(ParallelEnv[str, Array, Array]):
    """One world with the agents ``agent_0``, ``agent_1``, ...

    An agent leaves ``agents`` when it terminates, and all leave when the episode ends. The last
    observation belongs to the finished episode. ``infos`` have the agent's reward terms, and
    ``broken`` in a broken world, a truncation.
    """

    def __init__(self, worlds: Worlds, render_mode: str | None = None) -> None:
        """Build the world. ``render_mode`` is ``rgb_array`` or None."""
        if render_mode not in (None, *RENDER_MODES):
            raise ConfigError(f"render_mode: {unknown('mode', render_mode, RENDER_MODES)}")
        self.client = ClientEnv(worlds.single("PettingZoo's contract"))
        env = self.client.env
        self.render_mode = render_mode
        decisions_per_second = 1.0 / (env.step_dt * env.decision_period)
        self.metadata = {
            "name": worlds.cfg.task.name,
            "render_modes": list(RENDER_MODES),
            "render_fps": round(decisions_per_second),
            "is_parallelizable": True,
        }
        self.possible_agents = self.client.agents
        self.agents: list[str] = []
        self._sizes = dict(zip(self.possible_agents, env.spec.obs_sizes, strict=True))
        self.observation_spaces = {name: box(size) for name, size in self._sizes.items()}
        action_sizes = zip(self.possible_agents, env.spec.action_sizes, strict=True)
        self.action_spaces = {name: box(size, 1.0) for name, size in action_sizes}
        num_states = env.num_agents if env.spec.state_type == "FP" else 1
        self.state_space = box(num_states * env.spec.state_size)
        self._state = np.zeros(self.state_space.shape, dtype=np.float32)

    def observation_space(self, agent: str) -> Any:
        """Return the space of the agent's observations, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """Return the space of the agent's actions, always the same object."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        """Start an episode. A ``seed`` begins another sequence of episodes. ``options`` are
        ignored.
        """
        obs, state = self.client.reset(seed)
        self.agents = list(self.possible_agents)
        self._state = numpy_of(state[0]).reshape(-1)
        return self._by_agent(obs), {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Dicts:
        """Apply the actions of all ``agents``, clipped to [-1, 1], for one decision."""
        if not self.agents:
            raise RuntimeError("the episode is over; call reset()")
        step = self.client.step(self._join(actions))
        present = self.agents

        def of_present(values: Iterable[Any]) -> dict[str, Any]:
            by_name = dict(zip(self.possible_agents, values, strict=True))
            return {name: by_name[name] for name in present}

        terminated = of_present(step.terminated[0].tolist())
        was_cut_off = bool(step.was_cut_off)
        truncated = {name: was_cut_off and not terminated[name] for name in present}
        self._state = numpy_of(step.final_state[0]).reshape(-1)
        is_done = bool(step.done)
        self.agents = [name for name in present if not (is_done or terminated[name])]
        return (
            of_present(self._by_agent(step.final_obs).values()),
            of_present(step.reward[0].tolist()),
            terminated,
            truncated,
            of_present(self._infos(step)),
        )

    def state(self) -> Array:
        """Return the critic's state, or the agents' own states in one vector."""
        return self._state

    def render(self) -> NDArray[np.uint8] | None:
        """Return a picture (height, width, 3) if ``render_mode`` is ``rgb_array``."""
        return None if self.render_mode is None else self.client.render()

    def close(self) -> None:
        """Free the simulator and the renderer."""
        self.client.close()

    def _join(self, actions: Mapping[str, Any]) -> torch.Tensor:
        """Return actions (1, A, U) from each present agent's actions (U,). Others have zeros."""
        spec = self.client.env.spec
        if not isinstance(actions, Mapping):
            raise TypeError(f"actions: must be a dictionary by agent, not {type(actions).__name__}")
        joined = torch.zeros(1, spec.num_agents, spec.action_size, device=self.client.device)
        for name in self.agents:
            if name not in actions:
                raise ValueError(f"actions: {name} has none; step() takes one of each agent")
            agent = self.possible_agents.index(name)
            size = spec.action_sizes[agent]
            values = torch.as_tensor(actions[name], dtype=torch.float32, device=joined.device)
            if values.shape != (size,):
                raise ValueError(
                    f"actions: those of {name} must have the shape {(size,)}, not "
                    f"{tuple(values.shape)}"
                )
            joined[0, agent, :size] = values.detach()
        return joined

    def _by_agent(self, obs: torch.Tensor) -> dict[str, Array]:
        rows = numpy_of(obs[0])
        return {name: rows[i, : self._sizes[name]] for i, name in enumerate(self.possible_agents)}

    def _infos(self, step: TimeStep) -> Iterator[dict[str, Any]]:
        """Yield every agent's info."""
        terms = {name: values[0].tolist() for name, values in step.info.items()}
        broken = {} if bool(step.valid) else {"broken": True}
        for i in range(len(self.possible_agents)):
            yield {term: values[i] for term, values in terms.items()} | broken
