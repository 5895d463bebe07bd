"""The command ``mapush robot``: a robot's data from its maker's file, for reading and as YAML."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.process import say
from mapush.extensions.robot_files.reader import SUFFIXES, read_robot_file
from mqe.config import ConfigError, dump_yaml
from mqe.extensions import Registry
from mqe.world.robots import ROBOTS, robot_file
from mqe.world.robots.robot import LEG_JOINTS, LEGS, RobotCfg

PROGRAM = "mapush robot"


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="Reads a robot from its maker's MJCF or URDF, and prints its data.",
        example=f"{PROGRAM} anymal_c.urdf --out anymal_c.yaml",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="the robot's MJCF (.xml) or URDF (.urdf), or robot_descriptions:NAME",
    )
    parser.add_argument(
        "--out",
        metavar="FILE.yaml",
        help="a file for the robot's data, for correction; env.robots takes its path",
    )
    return parser


@config.command(make_parser)
def main(arguments: Any) -> int:
    """Read a robot. Return the exit code."""
    _, file = robot_file(arguments.file) or ("", Path())
    if file.suffix not in SUFFIXES or not file.is_file():
        raise ConfigError(
            f"FILE: {arguments.file} is missing or not a robot's file; name an MJCF (.xml) or a "
            "URDF (.urdf)"
        )
    target = None if arguments.out is None else Path(arguments.out)
    if target is not None and (target.suffix != ".yaml" or not target.parent.is_dir()):
        raise ConfigError(f"--out: {target} must end with .yaml, in a folder that exists")
    if target is not None and target.exists():
        raise ConfigError(f"--out: {target} exists, perhaps with corrections; name another file")
    robot = read_robot_file(file)
    if target is not None:  # env.robots would refuse the name later
        Registry("robot", ROBOTS).register(target.stem, robot.cfg)
    text = f"# Read from {file.name}.\n{dump_yaml(values(robot.cfg))}"
    if target is None:
        say(text)
    else:
        target.write_text(text, encoding="utf-8")
        say(f"Wrote {target}.")
    for note in robot.notes:
        say(f"Note: {note}")
    if robot.cfg.legs:
        name = target or arguments.file
        say(
            "Train its gait from the Go1's:\n  mapush train --preset go1_velocity "
            f"--set env.robots={name} --init_from pretrained:go1_velocity"
        )
    return 0


def values(cfg: RobotCfg) -> dict[str, Any]:
    """Return a robot's data for YAML, in the form of ``mqe.world.robots.described``."""
    robot = {field.name: _plain(getattr(cfg, field.name)) for field in fields(cfg)}
    del robot["name"], robot["motors"]
    legs = {}
    for name, leg in zip(LEGS, robot["legs"], strict=False):
        legs[name] = leg | dict(zip(LEG_JOINTS, leg.pop("inertials"), strict=True))
    return robot | {"legs": legs}


def _plain(value: Any) -> Any:
    """Return named tuples as mappings, and other ones as lists."""
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
