"""The push task: a team pushes an object to a goal by commanding velocities to a frozen gait."""

from __future__ import annotations

import torch

from mqe.controllers.gait import GaitController, load_team_gait
from mqe.tasks.entry import EnvCfg, TaskEntry, TaskSetup
from mqe.tasks.push.conditions import APART, CONDITIONS, USUAL
from mqe.tasks.push.episode_report import REPORT
from mqe.tasks.push.task import ENDINGS, PushCfg, PushTask
from mqe.world.objects import OBJECTS
from mqe.world.robots import Robots
from mqe.world.scene import build_scene, object_friction_fields
from mqe.world.streams import Streams

__all__ = ["ENDINGS", "PUSH", "PushCfg", "PushTask"]

_FRICTION = 1  # stream: the object's friction of each world, drawn once


def _make(cfg: PushCfg, env: EnvCfg, device: torch.device, streams: Streams) -> TaskSetup:
    obj = OBJECTS[cfg.object]
    num_agents = env.num_agents or (
        obj.num_agents if isinstance(env.robots, str) else len(env.robots)
    )
    scene = build_scene(
        num_agents, obj, cfg.inertia, env.actuators, cfg.success_radius, env.robots, env.model
    )
    robots = Robots(scene.robots, device)
    controller = GaitController(load_team_gait(cfg.gait, robots), env.num_envs, robots)
    task = PushTask(cfg, env.num_envs, robots, streams, controller)
    episode = torch.zeros(env.num_envs, dtype=torch.int64, device=device)
    friction = streams.between(*obj.friction, _FRICTION, episode)
    return TaskSetup(scene, task, object_friction_fields(scene, friction.cpu()))


PUSH = TaskEntry(
    PushCfg,
    _make,
    REPORT,
    evaluation=USUAL | {"spawn": "independent", "success_ends": True},
    strict=APART | {"success_ends": False},
    conditions=CONDITIONS,
)
