"""A robot as data, with its URDF's frames and signs: a quadruped, or a base on wheels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqe.config import ConfigError

LEGS = ("FL", "FR", "RL", "RR")
LEG_JOINTS = ("hip", "thigh", "calf")
NUM_LEGS = len(LEGS)
# By leg, then by joint: the order in which policies read and write them.
NUM_JOINTS = NUM_LEGS * len(LEG_JOINTS)
SHAPES = {"box": 3, "sphere": 1, "capsule": 2}  # by type, the length of ``Shape.size``

Vector = tuple[float, float, float]
# Places in a tensor (3, 3) of the moments xx, yy, zz, xy, xz, yz, and each entry's moment
PLACES = ((0, 1, 2, 0, 0, 1), (0, 1, 2, 1, 2, 2))
MOMENTS = np.array([[0, 3, 4], [3, 1, 5], [4, 5, 2]])
_GO1_LEG = 2.0 * 0.213  # [m] thigh and calf


class Inertial(NamedTuple):
    """Mass [kg], centre of mass [m] and inertia about it [kg m^2] (xx, yy, zz, xy, xz, yz), in the
    link's frame.
    """

    mass: float
    com: Vector
    inertia: tuple[float, ...]

    @classmethod
    def of(cls, mass: float, com: Vector, turn: NDArray[np.float64], moments: Any) -> Inertial:
        """Return an inertial with principal ``moments`` (3,) along the columns of ``turn``."""
        values = (turn @ np.diag(moments) @ turn.T)[PLACES]
        return cls(mass, com, tuple(values.tolist()))

    def mirrored(self, front: int, left: int) -> Inertial:
        """Return the inertial of the leg at ``front`` and ``left`` (+1 or -1 each), mirrored from
        the front left leg.
        """
        x, y, z = self.com
        xx, yy, zz, xy, xz, yz = self.inertia
        return Inertial(
            self.mass,
            (x * front, y * left, z),
            (xx, yy, zz, xy * front * left, xz * front, yz * left),
        )


class Shape(NamedTuple):
    """One collision primitive of a link."""

    type: str  # "box", "sphere" or "capsule"
    # [m] box: half lengths; sphere: radius; capsule: radius, half length of its straight part.
    size: tuple[float, ...]
    pos: Vector = (0.0, 0.0, 0.0)  # [m] in the link's frame
    axis: str = "z"  # along which a capsule lies: "y" or "z"


class Motor(NamedTuple):
    """One joint's motor and gearbox, in units of the joint.

    Torque in the direction of motion is at most ``peak_torque`` up to the knee speed. Beyond it the
    limit falls in a straight line, through zero at the no-load speed, as in a DC motor at its
    largest voltage.
    """

    peak_torque: float  # [N m]
    knee_speed: float  # [rad/s]
    no_load_speed: float  # [rad/s]
    armature: float  # [kg m^2] inertia of the rotor, as the joint feels it through the gears
    friction: float  # [N m] dry friction of the joint
    damping: float  # [N m s/rad] viscous friction of the joint

    @property
    def stall_torque(self) -> float:
        """Return the torque [N m] at rest on the line through knee and no-load speed."""
        return self.peak_torque * self.no_load_speed / (self.no_load_speed - self.knee_speed)

    def geared(self, ratio: float) -> Motor:
        """Return this motor behind a further reduction by ``ratio``. The joint's friction stays."""
        return self._replace(
            peak_torque=self.peak_torque * ratio,
            knee_speed=self.knee_speed / ratio,
            no_load_speed=self.no_load_speed / ratio,
            armature=self.armature * ratio**2,
        )


class Leg(NamedTuple):
    """One leg: the hip turns about the trunk's x axis, thigh and calf about the hip's y axis."""

    hip_pos: tuple[float, float]  # [m] hip joint in the trunk's frame, x and y
    side: float  # [m] from there to the thigh's joint, to the left
    joint_range: tuple[tuple[float, float], ...]  # [rad] hip, thigh, calf
    joint_pos: Vector  # [rad] in the nominal stance
    inertials: tuple[Inertial, Inertial, Inertial]  # hip, thigh, calf with foot
    # Likewise; the foot is not among them.
    shapes: tuple[tuple[Shape, ...], tuple[Shape, ...], tuple[Shape, ...]]


@dataclass(frozen=True, kw_only=True)
class RobotCfg:
    """A robot as data: bodies, joints, nominal stance, heights, motors, feet and its gait.

    A robot has four legs, or at least four driven wheels. A wheel turns about y. ``foot_radius`` is
    then a wheel's, the first torque limit every wheel's, and the trunk has the wheels' masses.
    """

    name: str
    trunk: Inertial
    trunk_shapes: tuple[Shape, ...]
    legs: tuple[Leg, ...] = ()  # FL, FR, RL, RR
    wheels: tuple[Vector, ...] = ()  # [m] in the trunk's frame, whose origin is amid them
    # [m] thigh's joint to calf's joint, and from there to the foot's centre
    link_lengths: tuple[float, float] = (0.0, 1.0)
    foot_radius: float  # [m]
    knee_radius: float = 0.0  # [m] reach of a thigh beyond the calf's joint
    standing_height: (
        float  # [m] trunk origin above the floor in the nominal stance, sagged under its weight
    )
    walking_height: float  # [m] likewise, wanted while walking
    low_height: float  # [m] likewise; a trunk below this has gone down
    stiffness: float  # [N m/rad] of every motor
    damping: float  # [N m s/rad]
    torque_limit: tuple[float, ...]  # [N m] hip, thigh, calf
    # The policy that it walks by in tasks that command velocities: pretrained:NAME or a checkpoint.
    gait: str
    # Its file in mqe/assets/looks; None: films and viewers draw the robot's collision primitives.
    looks: str | None = None
    # Hip, thigh, calf; None: ideal ones with a torque limit.
    motors: tuple[Motor, Motor, Motor] | None = None
    has_self_collision: bool = False  # thighs, calves and feet of different legs collide
    # The robot of env.model=physical; None: this one serves as both.
    physical: RobotCfg | None = None

    def __post_init__(self) -> None:
        for shape in (
            *self.trunk_shapes,
            *(shape for leg in self.legs for link in leg.shapes for shape in link),
        ):
            if len(shape.size) != SHAPES.get(shape.type):
                raise ConfigError(
                    f"robot {self.name}: shape {shape.type!r} has size={shape.size}; give a box "
                    "3 lengths, a sphere 1, a capsule 2 [m]"
                )
        if any(shape.type == "capsule" for shape in self.trunk_shapes):
            raise ConfigError(
                f"robot {self.name}: trunk_shapes has a capsule; use boxes and spheres"
            )
        count = len(self.wheels)
        if count and not (NUM_LEGS <= count <= NUM_JOINTS and all(y for _, y, _ in self.wheels)):
            raise ConfigError(
                f"robot {self.name}: has {count} wheels; give it {NUM_LEGS} to {NUM_JOINTS}, left "
                "and right of its middle"
            )

    @property
    def mass(self) -> float:
        """Return the mass [kg] of trunk and legs."""
        links = [link for leg in self.legs for link in leg.inertials]
        return self.trunk.mass + sum(link.mass for link in links)

    @property
    def size(self) -> float:
        """Return the length of the legs relative to the Go1's."""
        return sum(self.link_lengths) / _GO1_LEG

    @property
    def time_scale(self) -> float:
        """Return the duration of a motion relative to a similar one of the Go1. Motions of equal
        Froude number v^2 / (g L) last as long as a pendulum of the legs' length L.
        """
        return math.sqrt(self.size)

    @property
    def joint_pos(self) -> tuple[float, ...]:
        """Return the joints (J,) [rad] of the nominal stance."""
        return tuple(angle for leg in self.legs for angle in leg.joint_pos) or (0.0,) * NUM_JOINTS

    @property
    def joint_range(self) -> tuple[tuple[float, float], ...]:
        """Return the range (J, 2) [rad] of every joint."""
        return tuple(ends for leg in self.legs for ends in leg.joint_range)


def combine(*parts: Inertial) -> Inertial:
    """Weld inertials given in one frame into one body (parallel axis theorem)."""
    mass = sum(part.mass for part in parts)
    com = sum((part.mass * np.array(part.com) for part in parts), np.zeros(3)) / mass
    total = np.zeros((3, 3))
    for part in parts:
        offset = np.array(part.com) - com
        total += np.array(part.inertia)[MOMENTS]
        total += part.mass * (offset @ offset * np.eye(3) - np.outer(offset, offset))
    center: Any = tuple(com.tolist())
    return Inertial(mass, center, tuple(total[PLACES].tolist()))
