"""A navigation task over its scene."""

import logging

import torch

from mapush.extensions.navigate.features import NavigateConstants
from mapush.extensions.navigate.frozen_team import make_team, settings_of
from mapush.extensions.navigate.map_starts import MapStarts
from mapush.extensions.navigate.maps.solved import problem_of
from mapush.extensions.navigate.settings import NavigateCfg
from mapush.extensions.navigate.task import NavigateTask
from mqe.config import ConfigError
from mqe.controllers.frozen_policy import PolicyDescription, read_policy
from mqe.tasks.entry import EnvCfg, TaskSetup
from mqe.tasks.push.features import PushConstants
from mqe.tasks.push.layouts import PushLayouts
from mqe.world.fields import object_friction_fields
from mqe.world.robots import Robots
from mqe.world.scene import build_scene
from mqe.world.streams import Streams

_LOG = logging.getLogger(__name__)
_FRICTION = 1  # stream: the object's friction of each world, drawn once


def make(cfg: NavigateCfg, env: EnvCfg, device: torch.device, streams: Streams) -> TaskSetup:
    """Build the task. Raises ConfigError for settings in conflict with the team or the maps."""
    policy = read_policy(cfg.team, "task.team")
    team = policy.description
    push_cfg = settings_of(cfg, team)
    _check_team(cfg, env, team, push_cfg.decision_period)
    obj = push_cfg.pushed_object()
    problem = problem_of(cfg, obj, device)

    scene = build_scene(
        team.num_robots,
        obj,
        push_cfg.inertia,
        cfg.success_radius,
        obstacles=problem.shapes.slots,
        arena=problem.arena,
        has_marker=True,
        **env.scene_options(),
    )
    robots = Robots(scene.robots, device)
    constants = PushConstants(push_cfg, team.num_robots, device)
    layouts = PushLayouts(constants.footprint, robots, "separated", (1.0, 1.0))
    task = NavigateTask(
        env.num_envs,
        robots,
        make_team(policy, constants, robots, env.num_envs),
        MapStarts(problem, layouts, streams),
        NavigateConstants(cfg, constants, problem),
    )
    friction = streams.between(*obj.friction, _FRICTION, streams.once)
    return TaskSetup(scene, task, object_friction_fields(scene, friction.cpu()))


def _check_team(
    cfg: NavigateCfg, env: EnvCfg, team: PolicyDescription, decision_period: int
) -> None:
    """Raise ConfigError for settings in conflict with the team, whose decisions take
    ``decision_period`` control steps.
    """
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
    if env.randomize.goal_speed != 0.0:
        raise ConfigError(
            f"env.randomize.goal_speed: {cfg.name} plans to a goal that stands; leave it at 0"
        )
    if cfg.decision_period % decision_period:
        raise ConfigError(
            f"task.decision_period: {cfg.decision_period} must be a multiple of the "
            f"{decision_period} control steps of a decision of '{cfg.team}'"
        )
    if env.model != team.model:
        _LOG.warning(
            "Note: the team of %s learned with env.model=%s, and this is %s.",
            cfg.team,
            team.model,
            env.model,
        )
