"""HARL's environment contract over any ``VecEnv``: tensors on a device become numpy arrays and
dictionaries.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from harl_mapush.runner import RewardSums
from mqe.config import ConfigError, import_extra, unknown
from mqe.vec_env import VecEnv

_LOG = logging.getLogger(__name__)
TEAM_REWARDS = ("own", "mean", "sum")
_MAINTENANCE = 100  # decisions between two calls of grow_buffers, since HARL has no pause for it

Infos = list[dict[int, dict[str, Any]]]


Array = NDArray[np.float32]


def to_host(*tensors: Tensor) -> list[Array]:
    """Return tensors as arrays of their shapes, for the caller to keep. Booleans are 0 and 1.

    All tensors are copied in one transfer, from a GPU into page-locked memory. PyTorch reuses the
    memory once no array is left.
    """
    joined = torch.cat([tensor.detach().to(torch.float32).flatten() for tensor in tensors])
    host = torch.empty(joined.shape, pin_memory=joined.is_cuda)
    host.copy_(joined)
    parts = host.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape).numpy() for part, tensor in zip(parts, tensors, strict=True)]


class HarlEnv:
    """N environments of A agents under the contract of HARL's runners. ``infos[i][a]`` is agent a's
    dictionary in environment i.

    If an environment is done, its dictionaries hold ``original_obs`` (A, O) and ``original_state``
    (A, S), the last ones of the episode. ``bad_transition`` is True if the clock ended the episode,
    or if the simulation broke (then ``broken`` is True as well). With proper time limits HARL drops
    the last reward in both cases.
    """

    def __init__(
        self, env: VecEnv, team_reward: str = "own", headline: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Wrap ``env``. ``team_reward`` sets each agent's reward: its own, or the team's mean or
        sum.

        ``headline`` has the labels and statistics for the runners' line.
        """
        if team_reward not in TEAM_REWARDS:
            raise ConfigError(f"team_reward: {unknown('value', team_reward, TEAM_REWARDS)}")
        self.env = env
        self.team_reward = team_reward
        self.headline = headline
        self.n_threads = env.num_envs
        self.n_agents = env.num_agents
        self.state_type = env.spec.state_type
        self.observation_space = [box(size) for size in env.spec.obs_sizes]
        self.share_observation_space = [box(env.spec.state_size) for _ in range(env.num_agents)]
        self.action_space = [box(size, 1.0) for size in env.spec.action_sizes]
        self._terms = RewardSums(env)
        self._num_counted = 0  # decisions since the sums began
        self.num_decisions = 0  # decisions in all
        self.arrived: dict[str, Array] = {}  # ``more_results`` of the last decision, on the host

    def reset(self) -> tuple[Array, Array, Any]:
        """Start new episodes. Return obs (N, A, O), states (N, A, S) and no available actions."""
        obs, state = self.env.reset()
        return *to_host(obs, self._states(state)), None  # type: ignore[return-value]

    def step(
        self, actions: ArrayLike | Tensor
    ) -> tuple[Array, Array, Array, NDArray[np.bool_], Infos, Any]:
        """Apply actions (N, A, U), an array, tensor or nested lists, clipped to [-1, 1], for one
        decision.

        Return obs (N, A, O), states (N, A, S), rewards (N, A, 1), dones (N, A), infos and no
        available actions. Finished environments start their next episode at once, and return its
        first obs and states.
        """
        step = self.env.step(self._actions(actions))
        self._terms.add(step)
        self._num_counted += 1
        more = self.more_results()
        obs, states, rewards, dones, final_obs, final_state, flags, *rest = to_host(
            step.obs,
            self._states(step.state),
            self._rewards(step.reward),
            step.terminated | step.done.unsqueeze(1),
            step.final_obs,
            step.final_state,
            torch.stack((step.done, step.was_cut_off, ~step.valid), dim=1),
            *more.values(),
        )
        self.num_decisions += 1
        if self.num_decisions % _MAINTENANCE == 0:
            self._grow_buffers()
        infos = self._infos(final_obs, final_state, flags)
        self.arrived = dict(zip(more, rest, strict=True))
        return obs, states, rewards[..., np.newaxis], dones > 0.0, infos, None

    def more_results(self) -> Mapping[str, Tensor]:
        """Return further results of a decision by name, for the same transfer to the host."""
        return {}

    def get_statistics(self) -> dict[str, float]:
        """Return the metrics of at most the last 1,000 finished episodes, NaN if none has one."""
        metrics = self.env.statistics()
        return {name: float(value) for name, value in metrics.items()} | {
            "num_episodes": int(metrics["num_episodes"])
        }

    def reset_statistics(self) -> None:
        """Forget finished episodes."""
        self.env.reset_statistics()

    def take_rewards(self) -> dict[str, float]:
        """Return every reward term's mean a control step, over environments and agents, since the
        last call.
        """
        if self._num_counted == 0:
            return {}
        means = {name: float(mean) for name, mean in self._terms.means().items()}
        self._terms = RewardSums(self.env)
        self._num_counted = 0
        return means

    def close(self) -> None:
        """Free the simulator."""
        self.env.close()

    def _grow_buffers(self) -> None:
        note = self.env.grow_buffers()
        if note is not None:
            _LOG.warning("%s", note)

    def _actions(self, actions: ArrayLike | Tensor) -> Tensor:
        shape = (self.n_threads, self.n_agents, self.env.spec.action_size)
        if not isinstance(actions, Tensor):
            actions = torch.from_numpy(np.ascontiguousarray(actions, dtype=np.float32))
        if tuple(actions.shape) != shape:
            raise ValueError(
                f"actions must have shape {shape} (environments, agents, action), not "
                f"{tuple(actions.shape)}"
            )
        return actions.detach().to(self.env.device, torch.float32)

    def _rewards(self, rewards: Tensor) -> Tensor:
        """(N, A): each agent's reward."""
        if self.team_reward == "own":
            return rewards
        total = rewards.sum(1, keepdim=True)
        return (total / self.n_agents if self.team_reward == "mean" else total).expand_as(rewards)

    def _states(self, state: Tensor) -> Tensor:
        """(N, A, S): each agent's state. EP states are equal for all agents."""
        if state.ndim == 3:
            return state
        return state.unsqueeze(1).expand(-1, self.n_agents, -1)

    def _infos(self, final_obs: Array, final_state: Array, flags: Array) -> Infos:
        # One for all continuing environments, since thousands of dictionaries take milliseconds.
        infos: Infos = [{agent: {} for agent in range(self.n_agents)}] * self.n_threads
        ended = np.flatnonzero(flags[:, 0])
        final_obs = final_obs[ended]
        final_state = final_state[ended]
        if final_state.ndim == 2:
            final_state = np.repeat(final_state[:, np.newaxis], self.n_agents, axis=1)
        for k, i in enumerate(ended.tolist()):
            last = {
                "bad_transition": bool(flags[i, 1]),
                "original_obs": final_obs[k],
                "original_state": final_state[k],
            }
            if flags[i, 2]:
                last["broken"] = True
            infos[i] = {agent: dict(last) for agent in range(self.n_agents)}
        return infos


def box(size: int, limit: float = float("inf")) -> Any:
    """Return a space of ``size`` dimensions between -limit and limit. Raise ConfigError without
    gymnasium.
    """
    spaces = import_extra("gymnasium.spaces", "harl", "HARL's environment contract")
    return spaces.Box(-limit, limit, (size,), np.float32)
