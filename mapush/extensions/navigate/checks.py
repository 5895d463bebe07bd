"""Checks of a task's settings against its team."""

from __future__ import annotations

import logging

from mapush.extensions.navigate.settings import NavigateCfg
from mqe.config import ConfigError
from mqe.controllers.frozen_policy import PolicyDescription
from mqe.tasks.entry import EnvCfg
from mqe.tasks.push.settings import PushCfg

_LOG = logging.getLogger(__name__)


def check_team(cfg: NavigateCfg, env: EnvCfg, team: PolicyDescription, push_cfg: PushCfg) -> None:
    """Raise ConfigError for settings in conflict with the team."""
    if env.num_agents not in (None, 1):
        raise ConfigError(
            f"env.num_agents: {cfg.name} has one agent, which leads the {team.num_robots} robots "
            f"of task.team, not {env.num_agents}; leave it out"
        )
    if env.robots != team.robots:
        raise ConfigError(
            f"env.robots: the team of '{cfg.team}' are {team.robots}, not {env.robots}; say "
            f"env.robots={team.robots}, or name another task.team"
        )
    if env.randomize.lost_robots:
        raise ConfigError(
            f"env.randomize.lost_robots: {cfg.name} leads a whole team; leave it empty"
        )
    if cfg.decision_period % push_cfg.decision_period:
        raise ConfigError(
            f"task.decision_period: {cfg.decision_period} must be a multiple of the "
            f"{push_cfg.decision_period} control steps of a decision of '{cfg.team}'"
        )
    if env.model != team.model:
        _LOG.warning(
            "Note: the team of %s learned with env.model=%s, and this is %s.",
            cfg.team,
            team.model,
            env.model,
        )
