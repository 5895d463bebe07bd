"""The push task: a team pushes an object to a goal by commanding velocities to a frozen gait."""

from functools import partial

import torch

from mqe.controllers.gait import GaitController, load_team_gait
from mqe.extensions import Registry
from mqe.tasks.entry import EnvCfg, PushedObjects, TaskEntry, TaskSetup, velocity_commands
from mqe.tasks.push.episode_report import REPORT
from mqe.tasks.push.scripted import scripted_team
from mqe.tasks.push.settings import PUSH_TERMS, ROOM, PushCfg
from mqe.tasks.push.task import PushTask
from mqe.world.fields import object_friction_fields
from mqe.world.objects import ObjectCfg, object_floor_friction
from mqe.world.robots import Robots
from mqe.world.scene import GRAVITY, build_scene
from mqe.world.shapes import (
    DRAWN,
    DRAWN_FRICTION,
    DRAWN_MASS,
    common_object,
    draw_shapes,
    held_out_shapes,
    shape_fields,
)
from mqe.world.streams import Streams

# Streams of each world, drawn once: the object's friction, and its shape.
_FRICTION = 1
_SHAPE = 2


def _shapes_of_worlds(cfg: PushCfg, streams: Streams) -> list[ObjectCfg]:
    """Return each world's object, an empty list if all have ``task.object``."""
    if cfg.shapes is None:
        return []
    if cfg.shapes == DRAWN:
        return draw_shapes(streams, _SHAPE, cfg.shape_force, cfg.shape_kinds)
    shapes = held_out_shapes()
    return [shapes[number % len(shapes)] for number in streams.numbers.tolist()]


def _objects(cfg: PushCfg) -> PushedObjects:
    """Return the objects in worlds with these settings."""
    if cfg.shapes == DRAWN:
        least, largest = (GRAVITY * object_floor_friction(x) for x in DRAWN_FRICTION)
        mass = DRAWN_MASS
        force = (least * mass[0], largest * mass[1])
        if cfg.shape_force is not None:
            force = cfg.shape_force
            mass = (force[0] / largest, force[1] / least)
        return PushedObjects("drawn shapes", mass, force)
    return PushedObjects.of([cfg.pushed_object()] if cfg.shapes is None else held_out_shapes())


def _make(cfg: PushCfg, env: EnvCfg, device: torch.device, streams: Streams) -> TaskSetup:
    shapes = _shapes_of_worlds(cfg, streams)
    obj = common_object(shapes) if shapes else cfg.pushed_object()
    num_agents = env.num_agents or (
        obj.num_agents if isinstance(env.robots, str) else len(env.robots)
    )
    scene = build_scene(num_agents, obj, cfg.inertia, cfg.success_radius, **env.scene_options())
    robots = Robots(scene.robots, device)
    controller = GaitController(load_team_gait(cfg.gait, robots), env.num_envs, robots)
    task = PushTask(cfg, env.num_envs, robots, streams, controller, shapes)
    if shapes:
        return TaskSetup(scene, task, shape_fields(scene, shapes))
    friction = streams.between(*obj.friction, _FRICTION, streams.once)
    return TaskSetup(scene, task, object_friction_fields(scene, friction.cpu()))


_solo = partial(scripted_team, num_pushing=1)
PUSH = TaskEntry(
    PushCfg,
    _make,
    REPORT,
    suite="push",
    terms=PUSH_TERMS,
    of_policy=lambda cfg: {"observes_heading": cfg.is_heading_observed},
    replaces={"object": "shapes"},
    largest_team=lambda cfg: ROOM if cfg.observation == "sets" else None,
    objects=_objects,
    actions=lambda cfg: velocity_commands(cfg.action_scale) | {"keep_apart": cfg.keep_apart},
    gaits=lambda cfg: cfg.gait,
    policies=Registry("script", {"scripted_solo": _solo, "scripted_team": scripted_team}),
    subject=lambda cfg: cfg.object,
    frozen_policies=("gait",),
)
