"""Our environments behind OpenRL's vector-env contract: NumPy arrays, a list of infos.

This module does not need OpenRL.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harl_mapush.clients.entries import CLIENTS
from harl_mapush.clients.harl.harl_env import box
from harl_mapush.clients.host_copy import Array, to_host
from harl_mapush.clients.worlds import Worlds
from harl_mapush.runner import RewardSums
from mapush.extensions.openrl.openrl_format import ACTION_FACTOR, WORLDS
from mqe.config import dump_yaml, to_dict
from mqe.vec_env import TimeStep, VecEnv


class OpenRLEnv:
    """E environments with A agents for OpenRL's drivers.

    Actions count half, as in MAPush's trainer, so policies have equal meaning in both. Time-outs
    and broken worlds are ``bad_transition``s. OpenRL heeds them under ``use_proper_time_limits``.
    Infos for finished worlds have ``final_obs`` (A, O), the episode's last. OpenRL never reads it.
    """

    use_monitor = False

    def __init__(
        self,
        env: VecEnv,
        name: str,
        staggered: bool = True,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Wrap ``env`` with the sections ``env`` and ``task`` in ``settings``.

        ``staggered``: the first episodes begin at ages spread over the time limit.
        """
        self.env = env
        self.env_name = name
        self._staggered = staggered
        self._settings = settings
        self.parallel_env_num = env.num_envs
        self.agent_num = env.num_agents
        self.observation_space = box(env.spec.obs_sizes[0])
        self.action_space = box(env.spec.action_sizes[0], 1.0)
        # Of all decisions since the last rollout.
        self._terms = RewardSums(env)
        self._rewards = torch.zeros((), dtype=torch.float64, device=env.device)
        self._num_decisions = 0

    def reset(self, seed: Any = None, options: Any = None) -> Array:
        """Start new episodes. ``seed`` is ignored, since the settings have one.

        OpenRL resets once for its network and once for its driver: only the last counts.
        """
        obs, _ = self.env.reset(staggered=self._staggered)
        return to_host(obs)[0]

    def step(
        self, actions: Any, extra_data: Any = None
    ) -> tuple[Array, Array, NDArray[np.bool_], list[dict[str, Any]]]:
        """Apply actions (E, A, U). Return obs (E, A, O), rewards (E, A, 1), dones (E, A) and E
        infos.
        """
        given = torch.as_tensor(np.asarray(actions), dtype=torch.float32).to(self.env.device)
        step: TimeStep = self.env.step(ACTION_FACTOR * given)  # which it clips to [-1, 1]
        self._rewards += step.reward.mean()
        self._num_decisions += 1
        self._terms.add(step)
        obs, rewards, final_obs, flags = to_host(
            step.obs,
            step.reward.unsqueeze(2),
            step.final_obs,
            torch.stack((step.done, step.was_cut_off), dim=1),
        )
        is_done, is_bad = flags.T > 0.0
        # One object for all worlds that continue: OpenRL reads infos and never writes them.
        infos: list[dict[str, Any]] = [{}] * self.parallel_env_num
        for i in np.flatnonzero(is_done):
            infos[i] = {"final_obs": final_obs[i].copy()}
            if is_bad[i]:
                infos[i]["bad_transition"] = [True] * self.agent_num
        dones = np.repeat(is_done[:, np.newaxis], self.agent_num, axis=1)
        return obs, rewards, dones, infos

    def batch_rewards(self, buffer: Any) -> dict[str, float]:
        """Return a rollout's metrics for OpenRL's log: the mean reward a decision, each reward
        term's mean an env step (``reward/<term>``), and the episodes' statistics.
        """
        terms = {name: float(value) for name, value in self._terms.means().items()}
        metrics = {
            "average_step_reward": float(self._rewards) / max(self._num_decisions, 1),
            **terms,
            **self.env.statistics(),
        }
        self._rewards.zero_()
        self._terms = RewardSums(self.env)
        self._num_decisions = 0
        self.env.grow_buffers()
        return metrics

    def save_settings(self, run: Path) -> None:
        """Write the worlds' settings into a run's folder, for its import."""
        run.mkdir(parents=True, exist_ok=True)
        (run / WORLDS).write_text(dump_yaml(self._settings), encoding="utf-8")

    def close(self, **_: Any) -> None:
        """Free the simulator."""
        self.env.close()


def make_openrl_env(worlds: Worlds, staggered: bool = True) -> OpenRLEnv:
    """Return the worlds under OpenRL's contract. ``staggered`` is an option of ``OpenRLEnv``."""
    env = worlds.build()
    settings = {
        "env": to_dict(worlds.cfg.env) | {"num_agents": env.num_agents},
        "task": to_dict(worlds.cfg.task),
    }
    return OpenRLEnv(env, worlds.cfg.task.name, staggered, settings)


CLIENTS.register("openrl", make_openrl_env)
