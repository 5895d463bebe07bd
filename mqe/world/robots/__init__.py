"""Robots as data, and their registry."""

from collections.abc import Callable, Sequence
from dataclasses import replace
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
    "NUM_JOINTS",
    "ROBOTS",
    "ROBOT_READERS",
    "ROBOT_SOURCES",
    "RobotCfg",
    "Robots",
    "robot_file",
    "robots_of",
]

# Robots from files, by suffix; each raises ConfigError.
ROBOT_READERS: dict[str, Callable[[Path], RobotCfg]] = {".yaml": read_checked_robot}
# Files for the names of a collection, by the prefix before a colon; each raises ConfigError.
ROBOT_SOURCES: dict[str, Callable[[str], Path]] = {}


def robot_file(name: str) -> tuple[str, Path] | None:
    """Return a robot's name without folder, suffix and prefix, and its file. None: no file."""
    prefix, _, description = name.partition(":")
    if prefix in ROBOT_SOURCES:
        return description, ROBOT_SOURCES[prefix](description)
    path = Path(name).expanduser()
    return (path.stem, path) if path.suffix in ROBOT_READERS else None


class RobotRegistry(Registry[RobotCfg]):
    """Robots by name, by the path of a file with one, and by a collection's name for it."""

    def __init__(self) -> None:
        super().__init__("robot")
        self._files: dict[str, Path] = {}  # by name

    def find(self, name: str, where: str) -> RobotCfg:
        """Return a robot. A file's robot is registered under its name from ``robot_file``.

        Raises ConfigError for an unknown name, and for an unfit file.
        """
        file = robot_file(name)
        if file is None:
            return super().find(name, where)
        stem, path = file
        if not path.is_file():
            raise ConfigError(f"{where}: there is no file {name}; name a robot or its file")
        if self._files.get(stem) == path:
            del self[stem]  # the file may have changed
        robot = replace(ROBOT_READERS[path.suffix](path), name=stem)
        if self.get(stem, robot) != robot:
            raise ConfigError(f"{where}: {name} has the name of another robot; rename the file")
        self.register(stem, robot)
        self._files[stem] = path
        return robot

    def __contains__(self, name: object) -> bool:
        """Return whether ``name`` is a robot's, has a robot file's suffix, or a prefix in
        ``ROBOT_SOURCES``.
        """
        text = str(name)
        is_file = Path(text).suffix in ROBOT_READERS or text.partition(":")[0] in ROBOT_SOURCES
        return is_file or super().__contains__(name)


ROBOTS = RobotRegistry()
for _name in ("go1", "go2"):
    _file = files("mqe") / "assets" / "robots" / f"{_name}.yaml"
    ROBOTS.register(_name, read_robot(Path(str(_file))))
DEFAULT_ROBOT = "go1"
MODELS = ("physical", "reference")


def robots_of(
    names: str | Sequence[str], num_agents: int, model: str = "reference"
) -> tuple[RobotCfg, ...]:
    """Return the robots for a team of ``num_agents``, all alike or with one name each.

    ``model`` is the maker's present description ("physical") or the reference's URDF ("reference").
    A robot without a physical model is equal in both. Raises ConfigError for an unknown name or a
    wrong number of names.
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
    if model == "reference":
        return robots
    return tuple(robot.physical or robot for robot in robots)
