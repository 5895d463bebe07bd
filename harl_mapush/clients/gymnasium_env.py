"""Worlds with one agent under Gymnasium's contract for vector environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from harl_mapush.clients.harl.harl_env import box
from harl_mapush.clients.worlds import ClientEnv, Worlds, numpy_of
from mqe.config import ConfigError, unknown
from mqe.vec_env import TimeStep

AUTORESET_MODES = {
    "same_step": AutoresetMode.SAME_STEP,
    "next_step": AutoresetMode.NEXT_STEP,
}
OUTPUTS = ("numpy", "torch")
RENDER_MODES = ("rgb_array",)


class GymnasiumEnv(VectorEnv):
    """N worlds of one agent each, such as a gait's.

    ``infos`` have the reward terms (N,), and ``broken`` (N,). A broken world counts as truncated.
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
            ("autoreset_mode", autoreset_mode, AUTORESET_MODES),
            ("output", output, OUTPUTS),
            ("render_mode", render_mode, (None, *RENDER_MODES)),
        ):
            if value not in allowed:
                raise ConfigError(f"{name}: {unknown('value', value, [*filter(None, allowed)])}")
        self.client = ClientEnv(worlds)
        env = self.client.env
        if env.num_agents != 1:
            self.client.close()
            raise ConfigError(
                f"client: gymnasium's contract has one agent a world, and {worlds.cfg.task.name} "
                f"has {env.num_agents}; take pettingzoo or torchrl"
            )
        self.num_envs = env.num_envs
        self.render_mode = render_mode
        self.metadata = {
            "autoreset_mode": AUTORESET_MODES[autoreset_mode],
            "render_modes": list(RENDER_MODES),
            "render_fps": round(1.0 / (env.step_dt * env.decision_period)),
        }
        self.single_observation_space = box(env.spec.obs_size)
        self.single_action_space = box(env.spec.action_size, 1.0)
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
        return self._given(obs[:, 0]), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Apply actions (N, U), clipped to [-1, 1], for one decision."""
        step = self.client.step(self.client.join({"agent_0": actions}, self.client.agents))
        if self._resets_next:
            step = self._with_late_resets(step)
        infos = {name: self._given(values[:, 0]) for name, values in step.info.items()}
        infos["broken"] = self._given(~step.valid)
        if not self._resets_next:
            infos |= self._final(step)
        obs = step.final_obs if self._resets_next else step.obs
        return (
            self._given(obs[:, 0]),
            self._given(step.reward[:, 0]),
            self._given(step.terminated[:, 0]),
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

    def _given(self, tensor: torch.Tensor) -> Any:
        return numpy_of(tensor) if self._is_numpy else tensor

    def _final(self, step: TimeStep) -> dict[str, Any]:
        if not self._is_numpy:
            return {"final_obs": step.final_obs[:, 0], "_final_obs": step.done}
        is_done = numpy_of(step.done)
        if not is_done.any():
            return {}
        final_obs = np.full(self.num_envs, None, dtype=object)
        last = numpy_of(step.final_obs[:, 0])
        for i in np.flatnonzero(is_done):
            final_obs[i] = last[i]
        return {"final_obs": final_obs, "_final_obs": is_done}
