"""Robots as data, and their registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from mqe.config import ConfigError
from mqe.extensions import Registry
from mqe.world.robots.described import read_robot
from mqe.world.robots.robot import NUM_JOINTS, RobotCfg
from mqe.world.robots.tensors import Robots

__all__ = [
    "DEFAULT_ROBOT",
    "MODELS",
    "MODEL_READERS",
    "NUM_JOINTS",
    "ROBOTS",
    "RobotCfg",
    "Robots",
    "robot_model",
    "robots_of",
]

ROBOTS: Registry[RobotCfg] = Registry("robot")
for _name in ("go1", "go2"):
    _file = files("mqe") / "assets" / "robots" / f"{_name}.yaml"
    ROBOTS.register(_name, read_robot(Path(str(_file))))
DEFAULT_ROBOT = "go1"
MODELS = ("physical", "reference")
# Each returns a robot with the bodies of a maker's file, or raises ConfigError.
MODEL_READERS: Registry[Callable[[RobotCfg, str], RobotCfg]] = Registry("reader of robot models")


def robots_of(
    names: str | Sequence[str], num_agents: int, model: str = "reference"
) -> tuple[RobotCfg, ...]:
    """Return the robots for a team of ``num_agents``, all alike or with one name each.

    ``model`` is the maker's present description ("physical"), the reference's URDF ("reference") or
    a path to a maker's MJCF. Raises ConfigError for an unknown name or a wrong number of names.
    """
    robot_names = (names,) * num_agents if isinstance(names, str) else tuple(names)
    if not robot_names:
        raise ConfigError(
            "env.robots: [] names no robot; name one kind for all robots, or one per robot "
            f"(allowed: {', '.join(ROBOTS)})"
        )
    robots = tuple(ROBOTS.find(name, "env.robots") for name in robot_names)
    if len(robot_names) != num_agents:
        raise ConfigError(
            f"env.robots: {list(robot_names)} names {len(robot_names)} robots for a team of "
            f"{num_agents}; name one kind for all robots, or one per robot"
        )
    return tuple(robot_model(robot, model) for robot in robots)


def robot_model(robot: RobotCfg, model: str) -> RobotCfg:
    """Return ``robot`` as ``model``, a name in ``MODELS`` or the path of an MJCF.

    A robot without a physical model is equal in both ``MODELS``.
    """
    if model not in MODELS:
        for read in MODEL_READERS.values():
            return read(robot, model)
        raise ConfigError(
            f"env.model={model}: no installed extension reads robots from files; name one of "
            f"{', '.join(MODELS)}"
        )
    if model == "physical" and robot.physical is not None:
        return robot.physical
    return robot
