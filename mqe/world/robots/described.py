"""Robots from YAML files, in the form of ``mqe/assets/robots/go1.yaml``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import mujoco

from mqe.config import ConfigError, load_yaml, merge
from mqe.world.robots.build import add_robot
from mqe.world.robots.robot import LEG_JOINTS, LEGS, Inertial, Leg, Motor, RobotCfg, Shape, combine

# The motor of Go1 and Go2. Reduction of 6.33: Unitree's unitree_actuator_sdk (queryGearRatio). Peak
# torque, knee and no-load speed: Unitree's measurement on the Go2's motor, unitree_rl_lab,
# unitree_actuators.py (Go2HV: Y1, X1, X2). None is published for the Go1, whose URDF has the Go2's
# limits (23.7 N m, 30.1 rad/s). Rotor (0.000111842 kg m^2), friction and damping: the xacro files
# of both robots (github.com/unitreerobotics/unitree_ros).
GO_M8010_6 = Motor(
    peak_torque=20.2,
    knee_speed=13.5,
    no_load_speed=30.0,
    armature=0.000111842 * 6.33**2,
    friction=0.2,
    damping=0.01,
)

_TEXTS = ("type", "axis", "mirror", "gait", "looks")  # keys without numbers


def read_robot(path: Path) -> RobotCfg:
    """Return the robot in a YAML file, named as the file.

    Values in a section ``physical`` replace the others for ``env.model=physical``.
    """
    values = load_yaml(path)
    physical = values.pop("physical", None)
    robot = _robot(path.stem, values)
    if physical is None:
        return robot
    return replace(robot, physical=_robot(path.stem, merge(values, physical)))


def read_checked_robot(path: Path) -> RobotCfg:
    """Return the robot in a user's YAML file. Raise ConfigError for a file without a whole one."""
    try:
        _check_numbers("robot", load_yaml(path))
        robot = read_robot(path)
        for field in fields(robot):
            value = getattr(robot, field.name)
            if field.type == "float" and not isinstance(value, int | float):
                raise TypeError(f"{field.name}={value!r} must be a number")
        spec = mujoco.MjSpec()
        add_robot(spec, robot, robot.name, (0.5, 0.5, 0.5, 1.0), collision=1, hits=1)
        spec.compile()
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"robot file {path}: has no whole robot ({reason}); compare it with "
            "mqe/assets/robots/go2.yaml"
        ) from None
    return robot


def _check_numbers(key: str, value: Any) -> None:
    """Raise TypeError for text in a robot's values where MuJoCo would read a number."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            if name not in _TEXTS:
                _check_numbers(f"{key}.{name}", part)
    elif isinstance(value, list):
        for part in value:
            _check_numbers(key, part)
    elif isinstance(value, str):
        raise TypeError(f"{key} has {value!r} in place of a number")


def _robot(name: str, values: Mapping[str, Any]) -> RobotCfg:
    numbers = dict(values)
    if "legs" in numbers:
        described = numbers.pop("legs")
        legs = _fixed(_leg(described[name], 1, 1) for name in LEGS if name in described)
    else:
        leg = numbers.pop("leg")
        legs = _fixed(_leg(leg, front, left) for front in (1, -1) for left in (1, -1))
    knee_reduction = numbers.pop("knee_reduction", None)
    motors = None
    if knee_reduction is not None:
        motors = (GO_M8010_6, GO_M8010_6, GO_M8010_6.geared(knee_reduction))
    return RobotCfg(
        name=name,
        trunk=_link(numbers.pop("trunk"), 1, 1),
        trunk_shapes=_shapes(numbers.pop("trunk_shapes"), 1),
        legs=legs,
        link_lengths=_fixed(numbers.pop("link_lengths")),
        torque_limit=_fixed(numbers.pop("torque_limit")),
        wheels=_fixed(_fixed(pos) for pos in numbers.pop("wheels", ())),
        motors=motors,
        **numbers,
    )


def _leg(values: Mapping[str, Any], front: int, left: int) -> Leg:
    end = "front" if front > 0 else "rear"
    joint_pos = values["joint_pos"]
    joint_range = values["joint_range"]
    if isinstance(joint_pos, Mapping):  # by front and rear legs
        joint_pos = joint_pos[end]
        joint_range = joint_range[end]
    x, y = values["hip_pos"]
    hip, thigh, calf = joint_pos
    return Leg(
        hip_pos=(x * front, y * left),
        side=values["side"] * left,
        joint_range=tuple((low, high) for low, high in joint_range),
        joint_pos=(hip * left, thigh, calf),
        inertials=_fixed(_link(values[joint], front, left) for joint in LEG_JOINTS),
        shapes=_fixed(_shapes(shapes, left) for shapes in values["shapes"]),
    )


def _link(parts: Any, front: int, left: int) -> Inertial:
    """Weld a link's parts, or its only one, each mirrored in the axes that it names."""
    inertials = []
    for part in [parts] if isinstance(parts, Mapping) else parts:
        axes = part.get("mirror", "")
        inertial = Inertial(part["mass"], _fixed(part["com"]), _fixed(part["inertia"]))
        inertials.append(inertial.mirrored(front if "x" in axes else 1, left if "y" in axes else 1))
    return inertials[0] if len(inertials) == 1 else combine(*inertials)


def _fixed(values: Iterable[Any]) -> Any:
    """Return a tuple whose length type checkers take on trust."""
    return tuple(values)


def _shapes(values: Sequence[Mapping[str, Any]], left: int) -> tuple[Shape, ...]:
    shapes = []
    for shape in values:
        x, y, z = shape.get("pos", (0.0, 0.0, 0.0))
        axis = shape.get("axis", "z")
        shapes.append(Shape(shape["type"], tuple(shape["size"]), (x, y * left, z), axis))
    return tuple(shapes)
