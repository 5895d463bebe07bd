"""The command ``mapush robot``: a robot's data from its maker's file, for reading and as YAML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.process import library_lines, say
from mapush.extensions.robot_files.reader import SUFFIXES, RobotFile, read_robot_file
from mqe.config import ConfigError, dump_yaml, to_dict
from mqe.world.robots import robot_file
from mqe.world.robots.robot import LEG_JOINTS, LEGS, RobotCfg

PROGRAM = "mapush robot"


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="Reads a quadruped from its maker's MJCF or URDF, and prints its data.",
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


@config.command(PROGRAM)
@library_lines(say)
def main(argv: Sequence[str] | None) -> int:
    """Read a robot. Return the exit code."""
    arguments = make_parser().parse(argv)
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
    say(_table(robot))
    if target is not None:
        target.write_text(
            f"# Read from {file.name}.\n{dump_yaml(values(robot.cfg))}", encoding="utf-8"
        )
        say(f"Wrote {target}. Train its gait:")
    name = target or arguments.file
    say(f"  mapush train --preset go1_velocity --set env.robots={name}")
    return 0


def _table(robot: RobotFile) -> str:
    cfg = robot.cfg
    thigh, calf = cfg.link_lengths
    shapes = len(cfg.trunk_shapes) + sum(len(part) for leg in cfg.legs for part in leg.shapes)
    hip = cfg.legs[0].hip_pos
    rows = [
        ("mass", f"{cfg.mass:.2f} kg, the trunk {cfg.trunk.mass:.2f} kg"),
        ("hips", f"{hip[0]:g} m ahead, {hip[1]:g} m aside, feet {cfg.legs[0].side:g} m beyond"),
        ("thigh, calf", f"{thigh:g} m, {calf:g} m"),
        ("foot", f"radius {cfg.foot_radius:g} m"),
        ("torque limits", " / ".join(f"{limit:g}" for limit in cfg.torque_limit) + " N m"),
        ("stance", f"{cfg.standing_height:g} m high, joints {list(cfg.legs[0].joint_pos)} rad"),
        ("motors", f"{cfg.stiffness:g} N m/rad, {cfg.damping:g} N m s/rad, from mass and length"),
        ("shapes", f"{shapes} boxes and capsules, 4 feet; {robot.num_shapes} in the file"),
    ]
    lines = [f"{name:14} {value}" for name, value in rows]
    return "\n".join([cfg.name, *lines, *(f"Note: {note}" for note in robot.notes)])


def values(cfg: RobotCfg) -> dict[str, Any]:
    """Return a robot's data for YAML, in the form of ``mqe.world.robots.described``."""
    legs = []
    for leg in cfg.legs:
        links = zip(LEG_JOINTS, leg.inertials, strict=True)
        legs.append(
            {
                "hip_pos": leg.hip_pos,
                "side": leg.side,
                "joint_range": leg.joint_range,
                "joint_pos": leg.joint_pos,
                **{joint: link._asdict() for joint, link in links},
                "shapes": [[shape._asdict() for shape in shapes] for shapes in leg.shapes],
            }
        )
    numbers = (
        "link_lengths",
        "foot_radius",
        "knee_radius",
        "standing_height",
        "walking_height",
        "low_height",
        "stiffness",
        "damping",
        "torque_limit",
        "gait",
    )
    robot = {
        "trunk": [cfg.trunk._asdict()],
        "trunk_shapes": [shape._asdict() for shape in cfg.trunk_shapes],
        "legs": dict(zip(LEGS, legs, strict=True)),
        **{name: getattr(cfg, name) for name in numbers},
    }
    return to_dict(robot)
