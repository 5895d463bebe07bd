"""Robots by their names in the package ``robot_descriptions``."""

from importlib import import_module
from pathlib import Path

from mqe.config import ConfigError, import_extra, reason_of
from mqe.world.robots import ROBOT_SOURCES

PACKAGE = "robot_descriptions"


def description_file(name: str) -> Path:
    """Return the MJCF, or else the URDF, of a robot description.

    The package downloads its files on first use. Raises ConfigError without package, description,
    or network.
    """
    robot = f"env.robots: {PACKAGE}:{name}"
    import_extra(PACKAGE, "robots", robot)
    module = f"{PACKAGE}.{name}"
    try:
        description = import_module(module)
    except Exception as error:  # of git or the network, too
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            raise ConfigError(
                f"{robot} is not in the package; `python -m {PACKAGE} list` prints the names"
            ) from None
        raise ConfigError(
            f"{robot} was not downloaded ({reason_of(error)}); try again, or name its file"
        ) from None
    for kind in ("MJCF_PATH", "URDF_PATH"):
        if hasattr(description, kind):
            return Path(getattr(description, kind))
    raise ConfigError(f"{robot} has neither an MJCF nor a plain URDF; name another description")


ROBOT_SOURCES[PACKAGE] = description_file
