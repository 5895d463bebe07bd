"""MAPush's tasks under HARL's environment contract, built from one flat dictionary as HARL's
runners pass it.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harl_mapush.clients.flat_settings import (
    KEYS,
    as_python,
    keys_of_settings,
    resolve_settings,
    spelled,
    team_reward_of,
)
from harl_mapush.clients.harl.harl_env import Array, HarlEnv, Infos
from harl_mapush.clients.worlds import DrawnEnv
from harl_mapush.config import RunCfg, RunnerCfg
from harl_mapush.runs import exported as exported  # reads policies of former releases
from mqe.config import build
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env

_REMEMBERED = 1000  # episodes in a deque
_METRICS = ("success", "collision", "episode_time_s", "collaboration_degree")


class MAPushEnv(DrawnEnv, HarlEnv):
    """The push task, or another registered task, for HARL's runners.

    Further keys in the dictionary reach every setting of the task, as in ``parse_settings``.
    ``team_reward`` is each agent's reward, as in ``team_reward_of``.
    """

    def __init__(self, settings: Mapping[str, Any], cfg: RunCfg | None = None) -> None:
        """Build ``settings["n_threads"]`` worlds. Raise ConfigError for an impossible setting.

        ``cfg`` holds the settings of worlds described elsewhere.
        """
        self._cfg = resolve_settings(settings) if cfg is None else cfg
        with spelled(keys_of_settings(settings)):
            env = self._make(self._cfg.runner.seed)
        team_reward = team_reward_of(settings, env.spec.state_type)
        self._remembered: dict[str, deque[float]] = {
            name: deque(maxlen=_REMEMBERED) for name in _METRICS
        }
        # Figures of the last unbroken episodes, as in MAPush's fork.
        (
            self.episode_success,
            self.episode_collision,
            self.episode_lengths,
            self.episode_collaboration,
        ) = self._remembered.values()
        super().__init__(env, team_reward, env.report.headline)

    def step(self, actions: Any) -> tuple[Array, Array, Array, NDArray[np.bool_], Infos, Any]:
        """Apply actions for one decision. See ``HarlEnv.step``."""
        result = super().step(actions)
        is_done = np.atleast_1d(result[3].all(axis=1))
        if is_done.any():
            self._remember(is_done, result[4])
        return result

    def reset_statistics(self) -> None:
        """Forget finished episodes, also in the deques."""
        super().reset_statistics()
        for episodes in self._remembered.values():
            episodes.clear()

    @property
    def num_envs(self) -> int:
        """Number of worlds, HARL's ``n_threads``."""
        return self.n_threads

    @property
    def env_cfg(self) -> RunCfg:
        """The settings of the worlds."""
        return self._cfg

    @property
    def device(self) -> torch.device:
        """The device of the worlds."""
        return self.env.device

    def seed(self, seed: int) -> None:
        """Rebuild the worlds with another sequence of episodes. Call ``reset`` next.

        An impossible seed raises ConfigError, as in the constructor, and changes nothing.
        """
        with spelled({KEYS["seed"]: "seed"}):
            checked = build(RunnerCfg, {"seed": as_python(seed)}, "runner").seed
        self.close()
        self.env = self._make(checked)

    def _make(self, seed: int) -> MultiAgentEnv:
        return make_env(self._cfg.env, self._cfg.sim, self._cfg.task, seed)

    def more_results(self) -> dict[str, Tensor]:
        """Return the task's metrics (N,) of finished episodes."""
        metrics = self.env.episode_metrics
        return {name: metrics[name] for name in self._remembered if name in metrics}

    def _remember(self, is_done: NDArray[np.bool_], infos: Infos) -> None:
        """Append the metrics of finished episodes."""
        ended = [i for i in np.flatnonzero(is_done) if "broken" not in infos[i][0]]
        for name, metric in self.arrived.items():
            # An episode without this metric has NaN.
            self._remembered[name].extend(float(metric[i]) for i in ended if np.isfinite(metric[i]))
