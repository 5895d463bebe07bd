"""Worlds under Gymnasium's contracts. The robots of a team are one agent."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from harl_mapush.clients.harl.harl_env import box
from harl_mapush.clients.worlds import ClientEnv, Worlds, numpy_of
from mqe.config import ConfigError, unknown
from mqe.vec_env import TimeStep

AUTORESET_MODES = {"same_step": AutoresetMode.SAME_STEP, "next_step": AutoresetMode.NEXT_STEP}
OUTPUTS = ("numpy", "torch")
RENDER_MODES = ("rgb_array",)


class GymnasiumEnv(VectorEnv):
    """N worlds of one agent each: a gait, or a team.

    Observations (N, A * O) and actions (N, A * U) of a team are its robots' side by side, and its
    reward (N,) is their mean. ``infos`` have the reward terms (N,), of a team (N, A), and
    ``broken`` (N,). A broken world counts as truncated.
    With ``same_step``, ended worlds begin their next episode in the same step, and
    ``infos["final_obs"]`` has the last observations under the mask ``infos["_final_obs"]``. With
    ``next_step``, observations of ended worlds are their last, and the next step ignores their
    actions and returns their first observations with a reward of 0.
    """

    def __init__(
        self,
        worlds: Worlds,
        autoreset_mode: str = "same_step",
        output: str = "numpy",
        render_mode: str | None = None,
    ) -> None:
        """Build the worlds.

        ``autoreset_mode`` is ``same_step`` or ``next_step``. ``output`` ``torch`` leaves all
        results on the simulator's device, without a copy. ``render_mode`` is ``rgb_array`` or None.
        """
        for name, value, allowed in (
            ("autoreset_mode", autoreset_mode, [*AUTORESET_MODES]),
            ("output", output, OUTPUTS),
            ("render_mode", render_mode, (None, *RENDER_MODES)),
        ):
            if value not in allowed:
                raise ConfigError(f"{name}: {unknown('value', value, [*filter(None, allowed)])}")
        self.client = ClientEnv(worlds)
        env = self.client.env
        self.num_envs = env.num_envs
        self.render_mode = render_mode
        self.metadata = {
            "autoreset_mode": AUTORESET_MODES[autoreset_mode],
            "render_modes": list(RENDER_MODES),
            "render_fps": round(1.0 / (env.step_dt * env.decision_period)),
        }
        self.single_observation_space = box(env.num_agents * env.spec.obs_size)
        self.single_action_space = box(env.num_agents * env.spec.action_size, 1.0)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._resets_next = autoreset_mode == "next_step"
        self._is_numpy = output == "numpy"
        # Worlds to be reset by the next step
        self._waiting = torch.zeros(self.num_envs, dtype=torch.bool, device=self.client.device)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes in all worlds. A ``seed`` begins another sequence of episodes. ``options``
        are ignored.
        """
        obs, _ = self.client.reset(seed)
        self._waiting = torch.zeros_like(self._waiting)
        return self._given(obs.flatten(1)), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Apply actions (N, A * U), clipped to [-1, 1], for one decision."""
        step = self.client.step(self._by_robot(actions))
        if self._resets_next:
            step = self._with_late_resets(step)
        infos = {name: self._given(values.squeeze(1)) for name, values in step.info.items()}
        infos["broken"] = self._given(~step.valid)
        if not self._resets_next:
            infos |= self._final(step)
        obs = step.final_obs if self._resets_next else step.obs
        return (
            self._given(obs.flatten(1)),
            self._given(step.reward.mean(dim=1)),
            self._given(step.terminated.all(dim=1)),
            self._given(step.was_cut_off),
            infos,
        )

    def _with_late_resets(self, step: TimeStep) -> TimeStep:
        """Return a step with the first observations of new episodes in the waiting worlds."""
        waiting = self._waiting
        first_obs, _ = self.client.env.restart(waiting)
        self._waiting = step.done & ~waiting
        by_agent = waiting.unsqueeze(1)
        return step._replace(
            reward=step.reward.masked_fill(by_agent, 0.0),
            terminated=step.terminated & ~by_agent,
            truncated=step.truncated & ~waiting,
            valid=step.valid | waiting,
            final_obs=torch.where(waiting.view(-1, 1, 1), first_obs, step.final_obs),
            info={name: values.masked_fill(by_agent, 0.0) for name, values in step.info.items()},
        )

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Return a picture (height, width, 3) of the first world if ``render_mode`` asks for it."""
        return None if self.render_mode is None else (self.client.render(),)

    def close_extras(self, **kwargs: Any) -> None:
        """Free the simulator and the renderer."""
        self.client.close()

    def _by_robot(self, actions: Any) -> torch.Tensor:
        """Return actions (N, A, U) from a team's actions (N, A * U)."""
        given = torch.as_tensor(actions, dtype=torch.float32, device=self.client.device)
        shape = self.action_space.shape
        if given.shape != shape:
            raise ValueError(
                f"actions: must have the shape {shape} (worlds, action components), not "
                f"{tuple(given.shape)}"
            )
        return given.detach().unflatten(1, (self.client.env.num_agents, -1))

    def _given(self, tensor: torch.Tensor) -> Any:
        return numpy_of(tensor) if self._is_numpy else tensor

    def _final(self, step: TimeStep) -> dict[str, Any]:
        if not self._is_numpy:
            return {"final_obs": step.final_obs.flatten(1), "_final_obs": step.done}
        is_done = numpy_of(step.done)
        if not is_done.any():
            return {}
        final_obs = np.full(self.num_envs, None, dtype=object)
        last = numpy_of(step.final_obs.flatten(1))
        for i in np.flatnonzero(is_done):
            final_obs[i] = last[i]
        return {"final_obs": final_obs, "_final_obs": is_done}


class GymnasiumWorld(gymnasium.Env):
    """One world of one agent, a gait or a team, as ``GymnasiumEnv`` has several."""

    metadata = {"render_modes": list(RENDER_MODES)}

    def __init__(self, worlds: GymnasiumEnv) -> None:
        """Take ``worlds`` with a single world and ``next_step``."""
        self._worlds = worlds
        self.metadata = worlds.metadata
        self.render_mode = worlds.render_mode
        self.observation_space = worlds.single_observation_space
        self.action_space = worlds.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode. A ``seed`` begins another sequence of episodes."""
        super().reset(seed=seed)
        obs, _ = self._worlds.reset(seed=seed, options=options)
        return obs[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply an action (A * U,), clipped to [-1, 1], for one decision."""
        obs, reward, terminated, truncated, infos = self._worlds.step(np.asarray(action)[None])
        first = {name: values[0] for name, values in infos.items()}
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), first

    def render(self) -> Any:
        """Return a picture (height, width, 3) if ``render_mode`` is ``rgb_array``."""
        pictures = self._worlds.render()
        return None if pictures is None else pictures[0]

    def close(self) -> None:
        """Free the simulator and the renderer."""
        self._worlds.close()
