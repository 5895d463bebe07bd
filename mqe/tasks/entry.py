"""Entries in the task registry: settings, construction of worlds, reports on episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mqe.config import ConfigError, option
from mqe.extensions import Registry
from mqe.tasks.episode_report import Report
from mqe.tasks.task import Task
from mqe.tasks.terms import TermRegistry
from mqe.world.objects import ROBOT_FLOOR_FRICTION, ObjectCfg
from mqe.world.randomization import RandomizationCfg
from mqe.world.robots import DEFAULT_ROBOT, MODELS, ROBOTS
from mqe.world.scene import GROUNDS, MAX_ROBOTS, Scene, sliding_force
from mqe.world.streams import Streams

LEAST_FOOT_FRICTION = 0.05  # wet ice


@dataclass(frozen=True)
class EnvCfg:
    """Section ``env``: counts and kinds of worlds and robots."""

    num_envs: int = option(256, "parallel worlds", min=1, max=1_000_000_000)
    num_agents: int | None = option(
        None, "number of robots in one world; null: the object's team", min=1, max=MAX_ROBOTS
    )
    robots: str | tuple[str, ...] = option(
        DEFAULT_ROBOT, "kind of robot, or one kind for each robot of the team", choices=ROBOTS
    )
    model: str = option(
        "reference",
        "source of the robots: their makers' present descriptions (physical), or MAPush's URDF "
        "(reference)",
        choices=MODELS,
    )
    foot_friction: tuple[float, ...] = option(
        (ROBOT_FLOOR_FRICTION,),
        "friction of the floor with robots: sliding, or sliding, torsion [m] and rolling [m]",
        min=0.0,
        max=10.0,
    )
    ground: str = option(
        "flat",
        "floor: flat, or with kerbs of 2 to 4 cm under robots and things, not under task.object",
        choices=GROUNDS,
    )
    imports: tuple[str, ...] = option(
        (), "user modules imported by --import; recorded, never imported from a settings file"
    )
    randomize: RandomizationCfg = option(
        RandomizationCfg,
        "domain randomization: properties that differ between worlds or change over time",
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for an impossible friction."""
        if len(self.foot_friction) not in (1, 3):
            raise ConfigError(
                f"env.foot_friction: {list(self.foot_friction)} must be one number (sliding) or "
                "three (sliding, torsion, rolling); say [0.55], or [0.4, 0.02, 0.01], which are "
                "those of the makers' Go2"
            )
        if self.foot_friction[0] < LEAST_FOOT_FRICTION:
            raise ConfigError(
                f"env.foot_friction: no robot walks on a floor with the friction "
                f"{self.foot_friction[0]:g}; say {LEAST_FOOT_FRICTION:g} or more"
            )

    def scene_options(self) -> dict[str, Any]:
        """Return the arguments of ``build_scene`` with these settings' names."""
        names = ("robots", "model", "foot_friction", "ground")
        return {name: getattr(self, name) for name in names}


class TaskSetup(NamedTuple):
    """A task and its scene, before the simulator is built.

    ``fields`` are model fields with per-world values.
    """

    scene: Scene
    task: Task
    fields: dict[str, torch.Tensor]


class PushedObjects(NamedTuple):
    """Properties of all worlds' objects, each as minimum and maximum."""

    name: str
    mass: tuple[float, float]  # [kg]
    sliding_force: tuple[float, float]  # [N] push at which they slide, at their mean friction
    num_robots: int | None = None  # that push; None: the agents
    usual_team: int = 2  # robots, where no setting has their number

    @classmethod
    def of(cls, objects: Sequence[ObjectCfg], num_robots: int | None = None) -> PushedObjects:
        """Return the properties of one or several objects."""
        name = objects[0].name if len(objects) == 1 else f"{len(objects)} shapes"
        masses = [obj.mass for obj in objects]
        forces = [sliding_force(obj) for obj in objects]
        team = objects[0].num_agents
        return cls(name, (min(masses), max(masses)), (min(forces), max(forces)), num_robots, team)


class TaskEntry(NamedTuple):
    """One task by name, with all task-specific facts for the rest of the program."""

    cfg: type  # the section ``task``, a frozen dataclass with ``name``
    make: Callable[[Any, EnvCfg, torch.device, Streams], TaskSetup]
    report: Report = Report()  # how its episodes are summed up and shown
    suite: str | None = None  # in which the calculator measures policies; None: the usual worlds
    # Settings of ``task`` fixed by a policy, from those of its training; an evaluation keeps them
    # unless it names others.
    of_policy: Callable[[Any], Mapping[str, Any]] = lambda cfg: {}
    # The task's defaults for settings of ``env``.
    usual_env: Callable[[Any], Mapping[str, Any]] = lambda cfg: {}
    # By setting of ``task``: another setting that it replaces if only the first is named.
    replaces: Mapping[str, str] = MappingProxyType({})
    # Largest team for a shared policy trained with these settings of ``task``; None: only teams of
    # its training's size.
    largest_team: Callable[[Any], int | None] = lambda cfg: None
    # The objects with these settings of ``task``; None: the task has none.
    objects: Callable[[Any], PushedObjects | None] = lambda cfg: None
    # Untrained policies to compare with, each built for an environment.
    policies: Registry[Callable[[Any], Callable[[Tensor], Tensor]]] = Registry("script")
    # Names, unit and frame of the numbers of an action, their scale and their limits.
    actions: Callable[[Any], Mapping[str, Any]] = lambda cfg: {}
    # Gaits that follow the actions as velocity commands, one for all robots or one each, by default
    # the default gait of each kind. No function: actions are other numbers.
    gaits: Callable[[Any], str | tuple[str, ...] | None] | None = None
    is_gait: bool = False  # its policies turn velocity commands into joint targets
    terms: TermRegistry | None = None  # the terms that its settings may name
    # The subject of a run, part of its folder's default name.
    subject: Callable[[Any], str] = lambda cfg: cfg.name
    # Names of the settings of ``task`` that name frozen policies.
    frozen_policies: tuple[str, ...] = ()
    # Settings of the task that may name a file.
    files: tuple[str, ...] = ()


def velocity_commands(scale: Sequence[float]) -> dict[str, Any]:
    """Describe actions of robots under gaits. ``scale`` [m/s, m/s, rad/s] is the velocity of an
    action of 1.
    """
    return {
        "names": ["forward", "left", "turning_left"],
        "unit": "m/s, m/s, rad/s",
        "frame": "heading frame of the robot: x forward, y left",
        "scale": list(scale),
    }
