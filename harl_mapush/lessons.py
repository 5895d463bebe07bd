"""Worlds of lessons, with a teacher's actions in each (``algorithm.name=distil``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.runs import checkpoint
from harl_mapush.runs.formats import Team
from harl_mapush.runs.policy import load_team
from mqe.config import ConfigError, to_dict
from mqe.env.environment import MultiAgentEnv
from mqe.env.mixed_teams import MixedTeams
from mqe.registry import make_env
from mqe.vec_env import TEACHER_ACTIONS, Share, TimeStep


class Lessons(MixedTeams):
    """Several environments with a teacher each. N worlds, A robots, O obs size, U action size."""

    def __init__(self, parts: Sequence[MultiAgentEnv], teachers: Sequence[Team]) -> None:
        """Join ``parts``. Their actions and observations have equal sizes."""
        super().__init__(parts, [f"lesson{k}" for k in range(len(parts))])
        self._teachers = tuple(teachers)
        self._obs: Tensor | None = None  # those of the next decision

    def reset(self, *, staggered: bool = False) -> tuple[Tensor, Tensor]:
        """Start a new episode everywhere. Return obs (N, A, O) and state."""
        self._obs, state = super().reset(staggered=staggered)
        return self._obs, state

    def step(self, actions: Tensor) -> TimeStep:
        """Hold ``actions`` (N, A, U) for one decision. Report the teachers' actions for this
        decision.
        """
        taught = self._teach()
        step = super().step(actions)
        step.info[TEACHER_ACTIONS] = taught
        self._obs = step.obs
        return step

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Restore a ``state_dict``. Return its obs and state."""
        self._obs, critic_state = super().load_state_dict(state)
        return self._obs, critic_state

    @torch.no_grad()
    def _teach(self) -> Tensor:
        """Return the teachers' actions (N, A, U), zeros for absent robots."""
        assert self._obs is not None
        by_part = self._obs.split([part.num_envs for part in self.parts])
        taught = []
        for part, teacher, obs in zip(self.parts, self._teachers, by_part, strict=True):
            actions = teacher(obs[:, : part.num_agents])
            taught.append(pad(actions, (0, 0, 0, self.num_agents - part.num_agents)))
        return torch.cat(taught)


def settings(cfg: RunCfg) -> list[RunCfg]:
    """Return the settings for each lesson's worlds. Lessons divide ``env.num_envs`` equally.

    Raises ConfigError for an impossible lesson.
    """
    lessons = cfg.algorithm.lessons
    if not lessons:
        raise ConfigError(
            "algorithm.lessons: a student needs a lesson; say --set "
            "'algorithm.lessons=[{teacher: pretrained:cuboid}]'"
        )
    if len(lessons) > cfg.env.num_envs:
        raise ConfigError(
            f"env.num_envs={cfg.env.num_envs}: {len(lessons)} algorithm.lessons need a world each; "
            f"take {len(lessons)} or more"
        )
    plain = replace(cfg, env=replace(cfg.env, num_agents=cfg.env.largest_team, team_sizes=()))
    resolved = []
    for k, lesson in enumerate(lessons):
        over = {section: lesson.get(section) or {} for section in ("env", "task")}
        for name in ("num_envs", "team_sizes"):
            if name in over["env"]:
                raise ConfigError(
                    f"algorithm.lessons[{k}]: env.{name}: lessons divide the run's worlds equally; "
                    "leave it out"
                )
        over["env"] = over["env"] | {"num_envs": (cfg.env.num_envs + k) // len(lessons)}
        try:
            worlds, _ = config.resolve(to_dict(plain), over)
            checkpoint.resolve(lesson["teacher"])
        except ConfigError as error:
            raise ConfigError(f"algorithm.lessons[{k}]: {error}") from None
        if worlds.task.name != cfg.task.name:
            raise ConfigError(
                f"algorithm.lessons[{k}]: task.name={worlds.task.name}: all lessons have the "
                f"run's task, {cfg.task.name}; leave task.name out"
            )
        resolved.append(worlds)
    largest = max(worlds.env.num_agents or 0 for worlds in resolved)
    if plain.env.num_agents is None:
        raise ConfigError(
            "env.num_agents: say how many robots the largest team of algorithm.lessons has"
        )
    if largest != plain.env.num_agents:
        raise ConfigError(
            f"env.num_agents={plain.env.num_agents}: the largest team of algorithm.lessons has "
            f"{largest} robots; say {largest}"
        )
    return resolved


def make_lessons(cfg: RunCfg, share: Share) -> Lessons:
    """Build the worlds of all lessons, with their teachers.

    The library's log warns if a teacher did not learn in its lesson's worlds. Raises ConfigError
    for an unfit teacher.
    """
    parts: list[MultiAgentEnv] = []
    teachers = []
    first = share.first
    for k, worlds in enumerate(settings(cfg)):
        part = make_env(
            worlds.env, worlds.sim, worlds.task, cfg.runner.seed, share._replace(first=first)
        )
        parts.append(part)
        first += worlds.env.num_envs
        folder = checkpoint.resolve(cfg.algorithm.lessons[k]["teacher"])
        try:
            _check_sizes(part, parts[0])
            teachers.append(_teacher(worlds, folder, part))
        except ConfigError as error:
            raise ConfigError(f"algorithm.lessons[{k}]: {error}") from None
    return Lessons(parts, teachers)


def _teacher(worlds: RunCfg, folder: Any, part: MultiAgentEnv) -> Team:
    teacher = load_team(worlds, folder, part)
    if getattr(teacher, "is_recurrent", False):
        raise ConfigError(
            f"{folder} is recurrent, and lessons do not save its memory; name a teacher without "
            "recurrence"
        )
    return teacher


def _check_sizes(part: MultiAgentEnv, first: MultiAgentEnv) -> None:
    """Raise ConfigError if worlds cannot be joined with the first lesson's."""
    numbers = [
        (env.spec.obs_size, env.spec.state_size, env.decision_period) for env in (part, first)
    ]
    if numbers[0] != numbers[1]:
        raise ConfigError(
            f"obs size, state size and decision period are {numbers[0]}, in the first lesson "
            f"{numbers[1]}, and must be equal; teams of several sizes need "
            "task.observation=sets"
        )
