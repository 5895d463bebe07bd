"""Worlds with a teacher's actions (``algorithm.name=distil``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harl_mapush.config import RunCfg
from harl_mapush.runs import checkpoint
from harl_mapush.runs.formats import Team
from harl_mapush.runs.policy import TeamPolicy, load_team
from mapush.extensions.distil.demonstrations import TEACHER_ACTIONS
from mqe.config import ConfigError
from mqe.env.environment import MultiAgentEnv
from mqe.vec_env import TimeStep


class TaughtWorlds:
    """Worlds whose steps report a teacher's actions. All other members are those of the worlds."""

    def __init__(self, env: MultiAgentEnv, teacher: Team) -> None:
        """Ask ``teacher`` in the worlds of ``env``."""
        self._env = env
        self._teacher = teacher
        self._obs: Tensor | None = None  # those of the next decision

    def __getattr__(self, name: str) -> Any:
        """Return a member of the worlds."""
        return getattr(self._env, name)

    def reset(self, *, staggered: bool = False) -> tuple[Tensor, Tensor]:
        """Start a new episode everywhere. Return obs (N, A, O) and state."""
        self._obs, state = self._env.reset(staggered=staggered)
        return self._obs, state

    def step(self, actions: Tensor) -> TimeStep:
        """Hold ``actions`` (N, A, U) for one decision. Report the teacher's actions for this
        decision.
        """
        assert self._obs is not None
        with torch.no_grad():
            taught = self._teacher(self._obs)
        step = self._env.step(actions)
        step.info[TEACHER_ACTIONS] = taught
        self._obs = step.obs
        return step

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Restore a ``state_dict``. Return its obs and state."""
        self._obs, critic_state = self._env.load_state_dict(state)
        return self._obs, critic_state


def with_teacher(env: MultiAgentEnv, cfg: RunCfg) -> TaughtWorlds:
    """Return the worlds of ``env`` with the teacher in ``cfg``.

    The library's log warns if the teacher did not learn in such worlds. Raises ConfigError for an
    unfit teacher.
    """
    name = cfg.algorithm.teacher
    try:
        teacher = load_team(checkpoint.resolve(name), env)
    except ConfigError as error:
        raise ConfigError(f"algorithm.teacher: {error}") from None
    if not isinstance(teacher, TeamPolicy) or teacher.is_recurrent:
        raise ConfigError(
            f"algorithm.teacher: {name} has a memory, which no run saves; name a teacher without "
            "recurrence"
        )
    return TaughtWorlds(env, teacher)
