"""The push task: a team pushes an object to a goal by commanding velocities to a frozen gait."""

from __future__ import annotations

from typing import Any

import torch

from mqe.controllers.gait import GaitController, load_team_gait
from mqe.tasks.entry import EnvCfg, PushedObjects, TaskEntry, TaskSetup
from mqe.tasks.push.episode_report import REPORT
from mqe.tasks.push.scripted import scripted_solo, scripted_team
from mqe.tasks.push.settings import PUSH_TERMS, PushCfg
from mqe.tasks.push.task import PushTask
from mqe.world.objects import ObjectCfg, object_floor_friction
from mqe.world.robots import Robots
from mqe.world.scene import GRAVITY, build_scene, object_friction_fields
from mqe.world.shapes import DRAWN, common_object, draw_shapes, read_shapes, shape_fields
from mqe.world.streams import Streams

__all__ = ["PUSH", "PushCfg", "PushTask"]

# Streams of each world, drawn once: the object's friction, and its shape.
_FRICTION = 1
_SHAPE = 2

# Settings of ``task`` that make episodes easier or harder, as they are measured whatever a team was
# trained with.
USUAL: dict[str, Any] = {
    "close_share": 0.0,
    "tangled_share": 0.0,
    "entity_dropout": 0.0,
    "success_radius": PushCfg.success_radius,
    "success_heading": None,
    "success_rest_s": 0.0,
    "goal_distance": list(PushCfg.goal_distance),
    "episode_length_s": PushCfg.episode_length_s,
}
APART: dict[str, Any] = USUAL | {"spawn": "separated"}


def _randomized(**values: float | list[float] | list[str]) -> dict[str, Any]:
    return {"task": APART, "env": {"randomize": values}}


CONDITIONS: dict[str, dict[str, Any]] = {
    "separated": {"task": APART},
    "independent": {"task": APART | {"spawn": "independent"}},
    "within 0.5 m": {"task": APART | {"success_radius": 0.5}},
    "mass x0.5": _randomized(object_mass=0.5),
    "mass x2": _randomized(object_mass=2.0),
    "mass x3": _randomized(object_mass=3.0),
    "mass x4": _randomized(object_mass=4.0),
    "mass x5": _randomized(object_mass=5.0),
    "mass x6": _randomized(object_mass=6.0),
    "twice as wide": {"task": APART | {"object_width": 2.0}},
    "friction x0.5": _randomized(ground_friction=0.5),
    "friction x1.5": _randomized(ground_friction=1.5),
    "object friction x0.5": _randomized(object_friction=0.5),
    "object friction x1.5": _randomized(object_friction=1.5),
    "goal 3 to 6 m, 40 s": {
        "task": APART | {"goal_distance": [3.0, 6.0], "episode_length_s": 40.0}
    },
    "observation noise 0.05": _randomized(observation_noise=0.05),
    "command and joints 20 ms late": _randomized(action_latency=0.02, command_latency=0.02),
    "command and joints 40 ms late": _randomized(action_latency=0.04, command_latency=0.04),
    "kicks of 1 m/s every 2 s": _randomized(kick_speed=1.0, kick_interval=2.0),
    "kicks of 2 m/s every 2 s": _randomized(kick_speed=2.0, kick_interval=2.0),
    "one robot stands for 2 s": _randomized(freeze_time=2.0),
    "one robot dead from the start": _randomized(lost_robots=["dead"]),
    "one robot dies within 5 s": _randomized(lost_robots=["dead"], lost_time=[0.0, 5.0]),
    "one robot never comes": _randomized(lost_robots=["absent"]),
    "one robot comes 5 s late": _randomized(lost_robots=["late"], lost_time=5.0),
    "within 0.1 m and 10 degrees": {
        "task": APART | {"success_radius": 0.1, "success_heading": 0.1745, "goal_heading": 0.0}
    },
    "at rest for 2 s": {"task": APART | {"success_rest_s": 2.0}},
}


def _shapes_of_worlds(cfg: PushCfg, streams: Streams) -> list[ObjectCfg]:
    """Return each world's object, an empty list if all have ``task.object``."""
    if cfg.shapes is None:
        return []
    if cfg.shapes == DRAWN:
        return draw_shapes(
            streams, _SHAPE, cfg.shape_mass, cfg.shape_friction, cfg.shape_force, cfg.shape_kinds
        )
    known = read_shapes(cfg.shapes)
    return [known[number % len(known)] for number in streams.numbers.tolist()]


def _objects(cfg: PushCfg) -> PushedObjects:
    """Return the objects of worlds with these settings."""
    if cfg.shapes == DRAWN:
        least, largest = (GRAVITY * object_floor_friction(x) for x in cfg.shape_friction)
        mass = cfg.shape_mass
        force = (least * mass[0], largest * mass[1])
        if cfg.shape_force is not None:
            force = cfg.shape_force
            mass = (force[0] / largest, force[1] / least)
        return PushedObjects("drawn shapes", mass, force)
    return PushedObjects.of(
        [cfg.pushed_object()] if cfg.shapes is None else read_shapes(cfg.shapes)
    )


def _make(cfg: PushCfg, env: EnvCfg, device: torch.device, streams: Streams) -> TaskSetup:
    shapes = _shapes_of_worlds(cfg, streams)
    obj = common_object(shapes) if shapes else cfg.pushed_object()
    num_agents = env.largest_team or (
        obj.num_agents if isinstance(env.robots, str) else len(env.robots)
    )
    scene = build_scene(
        num_agents,
        obj,
        cfg.inertia,
        env.actuators,
        cfg.success_radius,
        env.robots,
        env.model,
        foot_friction=env.foot_friction,
    )
    robots = Robots(scene.robots, device)
    controller = GaitController(load_team_gait(cfg.gait, robots), env.num_envs, robots)
    task = PushTask(cfg, env.num_envs, robots, streams, controller, shapes)
    if shapes:
        return TaskSetup(scene, task, shape_fields(scene, shapes))
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
    terms=PUSH_TERMS,
    of_policy=lambda cfg: {"observes_heading": cfg.is_heading_observed},
    replaces={"object": "shapes"},
    largest_team=lambda cfg: cfg.max_robots if cfg.observation == "sets" else None,
    objects=_objects,
    policies={"scripted_solo": scripted_solo, "scripted_team": scripted_team},
)
