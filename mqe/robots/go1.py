"""The Unitree Go1: its URDF's masses, joints and collision primitives, built into an MjSpec.

Every number is the URDF's (the one that the reference loads) unless its comment says otherwise. Joints and all
12-vectors are ordered FL, FR, RL, RR x hip, thigh, calf, the order in which the policies read and write them.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

LEGS = ("FL", "FR", "RL", "RR")
LEG_JOINTS = ("hip", "thigh", "calf")
NUM_JOINTS = 12

HIP_OFFSET_X, HIP_OFFSET_Y = 0.1881, 0.04675  # [m] hip joint from the trunk origin, signs by leg
SHOULDER_OFFSET_Y = 0.08  # [m] thigh joint from the hip joint
LINK_LENGTH = 0.213  # [m] thigh joint to calf joint, and calf joint to foot centre
FOOT_RADIUS = 0.02  # [m]
TRUNK_HALF_SIZE = (0.3762 / 2, 0.0935 / 2, 0.114 / 2)  # [m]
HEAD_HALF_SIZE, HEAD_POS = (0.02, 0.05, 0.05), (0.27, 0.0, 0.0)  # [m] only in the reference's URDF

JOINT_RANGE = {  # [rad]
    "hip": (-0.802851455917, 0.802851455917),
    "thigh": (-1.0471975512, 4.18879020479),
    "calf": (-2.69653369433, -0.916297857297),
}
# The reference's actuator net follows its target one 5 ms physics step late (small-signal slopes: -18.9 N m/rad of the
# last step's error, 0.1 of the present one's, -0.9 N m s/rad of the speed, of which 0.1 are the lag of the position).
STIFFNESS = 19.0  # [N m/rad]
DAMPING = 0.8  # [N m s/rad]
ACTUATOR_LAG = 1  # physics steps
# [N m] What the reference clips to (hips and thighs), and where its net saturates (21.4 at 2 rad) below its clip of 25.
TORQUE_LIMIT = {"hip": 20.0, "thigh": 20.0, "calf": 22.0}
IDEAL_TORQUE_LIMIT = 33.5  # [N m] the URDF's effort limit of every joint

DEFAULT_JOINT_POS = (0.1, 0.8, -1.5, -0.1, 0.8, -1.5, 0.1, 1.0, -1.5, -0.1, 1.0, -1.5)  # [rad] nominal stance
STANDING_HEIGHT = 0.30  # [m] trunk origin above the floor in the nominal stance, sagged under its weight

COLORS = (  # one a robot, so that teammates can be told apart
    (0.13, 0.38, 0.80, 1.0),
    (0.93, 0.50, 0.10, 1.0),
    (0.20, 0.62, 0.30, 1.0),
    (0.62, 0.22, 0.66, 1.0),
)
LIMB_COLOR = (0.22, 0.23, 0.26, 1.0)
FOOT_COLOR = (0.05, 0.05, 0.05, 1.0)


class Inertial(NamedTuple):
    """Mass [kg], centre of mass [m] and inertia about it [kg m^2] (xx, yy, zz, xy, xz, yz), in the link's frame."""

    mass: float
    com: tuple[float, float, float]
    inertia: tuple[float, float, float, float, float, float]


TRUNK = Inertial(
    4.8,
    (0.011611, 0.004437, 0.000108),
    (0.016130741919, 0.036507810812, 0.044693872053, 0.000593180607, 7.324662e-06, 2.0969537e-05),
)
IMU = Inertial(0.001, (-0.01592, -0.06659, -0.00617), (1e-4, 1e-4, 1e-4, 0.0, 0.0, 0.0))
FOOT = Inertial(0.06, (0.0, 0.0, -LINK_LENGTH), (9.6e-06, 9.6e-06, 9.6e-06, 0.0, 0.0, 0.0))


def hip_inertial(front: int, left: int) -> Inertial:
    """Give a hip's inertial; ``front`` and ``left`` are +1 or -1."""
    return Inertial(
        0.510299,
        (-0.00541 * front, -0.00074 * left, 6e-06),
        (0.00030528937, 0.000590894859, 0.000396594572,
         -7.788013e-06 * front * left, 2.2016e-07 * front, -1.7175e-08 * left),
    )  # fmt: skip


def thigh_inertial(left: int) -> Inertial:
    """Give a thigh's inertial; ``left`` is +1 or -1."""
    return Inertial(
        0.898919,
        (-0.003468, -0.018947 * left, -0.032736),
        (0.005395867678, 0.005142451046, 0.00102478732, 1.02809e-07 * left, 0.000337529085, -5.816563e-06 * left),
    )


CALF = Inertial(
    0.158015,
    (0.006286, 0.001307, -0.122269),
    (0.003607648222, 0.003626771492, 3.5148003e-05, 1.494971e-06, -0.000132778525, -2.8638535e-05),
)


def combine(*parts: Inertial) -> Inertial:
    """Weld inertials given in one frame into one body (parallel axis theorem)."""
    mass = sum(part.mass for part in parts)
    com = sum((part.mass * np.array(part.com) for part in parts), np.zeros(3)) / mass
    total = np.zeros((3, 3))
    for part in parts:
        xx, yy, zz, xy, xz, yz = part.inertia
        offset = np.array(part.com) - com
        total += np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        total += part.mass * (offset @ offset * np.eye(3) - np.outer(offset, offset))
    com_x, com_y, com_z = (float(value) for value in com)
    moments = (total[0, 0], total[1, 1], total[2, 2], total[0, 1], total[0, 2], total[1, 2])
    xx, yy, zz, xy, xz, yz = (float(value) for value in moments)
    return Inertial(mass, (com_x, com_y, com_z), (xx, yy, zz, xy, xz, yz))


def add_go1(
    spec: mujoco.MjSpec,
    name: str,
    color: tuple[float, float, float, float],
    collision: int,
    hits: int,
    has_ideal_actuators: bool = False,
) -> None:
    """Add one Go1 under the world: bodies ``<name>/trunk`` ..., joints and position actuators in policy order.

    ``collision`` and ``hits`` are its geoms' contype and conaffinity. Ideal actuators give the URDF's effort limit.
    """

    def body(parent, label: str, pos: tuple[float, float, float], inertial: Inertial):
        return parent.add_body(
            name=f"{name}/{label}", pos=pos, mass=inertial.mass, ipos=inertial.com,
            fullinertia=inertial.inertia, explicitinertial=True,
        )  # fmt: skip

    def geom(parent, kind, size, pos=(0.0, 0.0, 0.0), rgba=LIMB_COLOR, **extra):
        return parent.add_geom(
            type=kind, size=size, pos=pos, rgba=rgba, contype=collision, conaffinity=hits, mass=0.0, **extra
        )

    box, sphere, capsule = mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE
    trunk = body(spec.worldbody, "trunk", (0.0, 0.0, STANDING_HEIGHT), combine(TRUNK, IMU))
    trunk.add_freejoint(name=f"{name}/root")
    geom(trunk, box, TRUNK_HALF_SIZE, rgba=color)
    geom(trunk, box, HEAD_HALF_SIZE, pos=HEAD_POS, rgba=color)
    for leg in LEGS:
        front, left = 1 if leg[0] == "F" else -1, 1 if leg[1] == "L" else -1
        hip = body(trunk, f"{leg}_hip", (HIP_OFFSET_X * front, HIP_OFFSET_Y * left, 0.0), hip_inertial(front, left))
        geom(hip, capsule, (0.046, 0.02, 0.0), pos=(0.0, 0.045 * left, 0.0), rgba=color,
             quat=(np.sqrt(0.5), np.sqrt(0.5), 0.0, 0.0))  # fmt: skip
        thigh = body(hip, f"{leg}_thigh", (0.0, SHOULDER_OFFSET_Y * left, 0.0), thigh_inertial(left))
        geom(thigh, box, (0.017, 0.01225, 0.1065), pos=(0.0, 0.0, -0.1065), rgba=color)
        calf = body(thigh, f"{leg}_calf", (0.0, 0.0, -LINK_LENGTH), combine(CALF, FOOT))
        geom(calf, box, (0.008, 0.008, 0.1065), pos=(0.0, 0.0, -0.1065))
        geom(calf, sphere, (FOOT_RADIUS, 0.0, 0.0), pos=(0.0, 0.0, -LINK_LENGTH), rgba=FOOT_COLOR,
             name=f"{name}/{leg}_foot", condim=3)  # fmt: skip
        for link, joint, axis in ((hip, "hip", (1, 0, 0)), (thigh, "thigh", (0, 1, 0)), (calf, "calf", (0, 1, 0))):
            link.add_joint(name=f"{name}/{leg}_{joint}", type=mujoco.mjtJoint.mjJNT_HINGE, axis=axis,
                           range=JOINT_RANGE[joint], limited=mujoco.mjtLimited.mjLIMITED_TRUE)  # fmt: skip
    for leg in LEGS:
        for joint in LEG_JOINTS:
            limit = IDEAL_TORQUE_LIMIT if has_ideal_actuators else TORQUE_LIMIT[joint]
            spec.add_actuator(
                name=f"{name}/{leg}_{joint}", target=f"{name}/{leg}_{joint}", trntype=mujoco.mjtTrn.mjTRN_JOINT,
                gaintype=mujoco.mjtGain.mjGAIN_FIXED, biastype=mujoco.mjtBias.mjBIAS_AFFINE,
                gainprm=[STIFFNESS] + [0.0] * 9, biasprm=[0.0, -STIFFNESS, -DAMPING] + [0.0] * 7,
                forcelimited=mujoco.mjtLimited.mjLIMITED_TRUE, forcerange=(-limit, limit),
            )  # fmt: skip


def foot_positions(joint_pos: Tensor) -> Tensor:
    """Give foot centres (..., 4, 3) [m] in the trunk frame from joints (..., 12)."""
    return _Legs.of(joint_pos).feet


def foot_kinematics(joint_pos: Tensor, joint_vel: Tensor) -> tuple[Tensor, Tensor]:
    """Give foot centres [m] and velocities [m/s] in the trunk frame, (..., 4, 3) each, from joints (..., 12)."""
    legs = _Legs.of(joint_pos)
    rates = joint_vel.unflatten(-1, (4, 3))
    hip_rate, rate = rates[..., 0], rates[..., 1:].cumsum(dim=-1).unsqueeze(-2)
    sink_rate, forward_rate = (legs.trig * rate).sum(dim=-1).mul(-LINK_LENGTH).unbind(dim=-1)
    lateral_rate = torch.addcmul(sink_rate * legs.sin_hip, legs.vertical, hip_rate, value=-1.0)
    vertical_rate = torch.addcmul(legs.lateral * hip_rate, sink_rate, legs.cos_hip, value=-1.0)
    return legs.feet, torch.stack((forward_rate, lateral_rate, vertical_rate), dim=-1)


def knee_positions(joint_pos: Tensor) -> Tensor:
    """Return knee joint centres (..., 4, 3) [m] in the trunk frame from joints (..., 12)."""
    shoulder, side = _leg_offsets(joint_pos.device, joint_pos.dtype)
    joints = joint_pos.unflatten(-1, (4, 3))
    hip, thigh = joints[..., 0], joints[..., 1]
    up = torch.cos(thigh).mul(-LINK_LENGTH)
    sin, cos = torch.sin(hip), torch.cos(hip)
    lateral = torch.addcmul(side * cos, up, sin, value=-1.0)
    vertical = torch.addcmul(side * sin, up, cos)
    return torch.stack((torch.sin(thigh).mul(-LINK_LENGTH), lateral, vertical), dim=-1) + shoulder


class _Legs(NamedTuple):
    """Four legs in one pose; each (..., 4) and relative to its hip, unless said otherwise."""

    trig: Tensor  # (..., 4, 2, 2) sines, then cosines, of thigh and calf against the trunk
    sin_hip: Tensor
    cos_hip: Tensor
    lateral: Tensor  # [m] the foot to the left
    vertical: Tensor  # [m] the foot upwards
    feet: Tensor  # (..., 4, 3) [m] trunk frame

    @classmethod
    def of(cls, joint_pos: Tensor) -> _Legs:
        """Bend them to joints (..., 12) [rad]."""
        shoulder, side = _leg_offsets(joint_pos.device, joint_pos.dtype)
        joints = joint_pos.unflatten(-1, (4, 3))
        hip, angle = joints[..., 0], joints[..., 1:].cumsum(dim=-1)
        trig = torch.stack((torch.sin(angle), torch.cos(angle)), dim=-2)
        # From the thigh's joint in the leg's own plane, which the hip then turns about x.
        forward, up = trig.sum(dim=-1).mul(-LINK_LENGTH).unbind(dim=-1)
        sin, cos = torch.sin(hip), torch.cos(hip)
        lateral = torch.addcmul(side * cos, up, sin, value=-1.0)
        vertical = torch.addcmul(side * sin, up, cos)
        feet = torch.stack((forward, lateral, vertical), dim=-1) + shoulder
        return cls(trig, sin, cos, lateral, vertical, feet)


@cache
def _leg_offsets(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Where the hips are (4, 3), and how far from its hip's axis each thigh swings (4,) [m]."""
    signs = [(1.0 if leg[0] == "F" else -1.0, 1.0 if leg[1] == "L" else -1.0) for leg in LEGS]
    hips = [(HIP_OFFSET_X * front, HIP_OFFSET_Y * left, 0.0) for front, left in signs]
    sides = [SHOULDER_OFFSET_Y * left for _, left in signs]
    return torch.tensor(hips, dtype=dtype, device=device), torch.tensor(sides, dtype=dtype, device=device)
