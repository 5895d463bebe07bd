"""Robots as data, and their registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from mqe.config import ConfigError
from mqe.extensions import Registry
from mqe.world.robots.described import read_checked_robot, read_robot
from mqe.world.robots.robot import NUM_JOINTS, RobotCfg
from mqe.world.robots.tensors import Robots

__all__ = [
    "DEFAULT_ROBOT",
    "MODELS",
    "MODEL_READERS",
    "NUM_JOINTS",
    "ROBOTS",
    "ROBOT_READERS",
    "RobotCfg",
    "Robots",
    "robot_model",
    "robots_of",
]

# Robots from files, by suffix; each raises ConfigError.
ROBOT_READERS: dict[str, Callable[[Path], RobotCfg]] = {".yaml": read_checked_robot}


class RobotRegistry(Registry[RobotCfg]):
    """Robots by name, and by the path of a file with one."""

    def __init__(self) -> None:
        super().__init__("robot")
        self._files: dict[str, Path] = {}  # by name

    def find(self, name: str, where: str) -> RobotCfg:
        """Return a robot. A file's robot is registered under the file's name.

        Raises ConfigError for an unknown name, and for an unfit file.
        """
        path = Path(name).expanduser()
        if path.suffix not in ROBOT_READERS:
            return super().find(name, where)
        if not path.is_file():
            raise ConfigError(f"{where}: there is no file {name}; name a robot or its file")
        if self._files.get(path.stem) == path:
            del self[path.stem]  # the file may have changed
        robot = ROBOT_READERS[path.suffix](path)
        if self.get(path.stem, robot) != robot:
            raise ConfigError(f"{where}: {name} has the name of another robot; rename the file")
        self.register(path.stem, robot)
        self._files[path.stem] = path
        return robot

    def __contains__(self, name: object) -> bool:
        """Return whether ``name`` is a robot's, or a path with a robot file's suffix."""
        return super().__contains__(name) or Path(str(name)).suffix in ROBOT_READERS


ROBOTS = RobotRegistry()
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
    kinds = {name: ROBOTS.find(name, "env.robots") for name in dict.fromkeys(robot_names)}
    robots = tuple(kinds[name] for name in robot_names)
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
