"""The velocity task: one robot learns a gait for velocity commands."""

from typing import Any

import torch

from mapush.extensions.gait.settings import VELOCITY_TERMS, VelocityCfg
from mapush.extensions.gait.task import VelocityTask
from mqe.config import ConfigError
from mqe.controllers.trot import ACTION_SCALE, JOINTS
from mqe.registry import TASKS
from mqe.tasks.entry import EnvCfg, TaskEntry, TaskSetup
from mqe.tasks.episode_report import Report
from mqe.world.fields import floor_friction_fields
from mqe.world.robots import Robots
from mqe.world.robots.robot import LEGS
from mqe.world.scene import build_scene
from mqe.world.streams import Streams

_FRICTION = 1  # stream: the floor's friction of each world, drawn once


def _make(cfg: VelocityCfg, env: EnvCfg, device: torch.device, streams: Streams) -> TaskSetup:
    if env.num_agents not in (None, 1):
        raise ConfigError(
            f"env.num_agents: {cfg.name} trains one robot a world, not {env.num_agents}; say 1"
        )
    scene = build_scene(1, None, **env.scene_options())
    if scene.robots[0].wheels:
        raise ConfigError(
            f"env.robots: {scene.robots[0].name} has wheels, which need no gait; name a robot with "
            "legs"
        )
    task = VelocityTask(cfg, env.num_envs, Robots(scene.robots, device), streams)
    friction = streams.between(*cfg.floor_friction, _FRICTION, streams.once)
    return TaskSetup(scene, task, floor_friction_fields(scene, friction.cpu()))


def _actions(cfg: VelocityCfg) -> dict[str, Any]:
    """Describe a gait's joint actions."""
    return {
        "names": list(JOINTS),
        "unit": "rad",
        "frame": "joint, about the nominal stance, under the lift of swinging feet",
        "scale": list(ACTION_SCALE) * len(LEGS),
        "max_command": list(cfg.max_command),
    }


VELOCITY = TaskEntry(
    VelocityCfg,
    _make,
    Report(
        rates=("fall",),
        headline=(
            ("Falls", "fall_rate"),
            ("Velocity error", "velocity_error"),
            ("Yaw rate error", "yaw_rate_error"),
        ),
        outcomes={"fall": "the robot fell"},
    ),
    is_gait=True,
    terms=VELOCITY_TERMS,
    actions=_actions,
    # Constants of the random events
)
TASKS.register("go1_velocity", VELOCITY)
