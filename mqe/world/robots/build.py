"""A robot's data as bodies, joints and motors of an MjSpec."""

from __future__ import annotations

import mujoco
import numpy as np

from mqe.world.robots.robot import LEG_JOINTS, LEGS, Inertial, RobotCfg, Shape

COLORS = (  # one a robot, so that teammates can be distinguished
    (0.13, 0.38, 0.80, 1.0),
    (0.93, 0.50, 0.10, 1.0),
    (0.20, 0.62, 0.30, 1.0),
    (0.62, 0.22, 0.66, 1.0),
)
LIMB_COLOR = (0.22, 0.23, 0.26, 1.0)
FOOT_COLOR = (0.05, 0.05, 0.05, 1.0)
AXES = {"hip": (1, 0, 0), "thigh": (0, 1, 0), "calf": (0, 1, 0)}

_TYPES = {
    "box": mujoco.mjtGeom.mjGEOM_BOX,
    "sphere": mujoco.mjtGeom.mjGEOM_SPHERE,
    "capsule": mujoco.mjtGeom.mjGEOM_CAPSULE,
}
_ALONG = {"y": (np.sqrt(0.5), np.sqrt(0.5), 0.0, 0.0), "z": (1.0, 0.0, 0.0, 0.0)}


def add_robot(
    spec: mujoco.MjSpec,
    robot: RobotCfg,
    name: str,
    color: tuple[float, float, float, float],
    collision: int,
    hits: int,
    has_ideal_actuators: bool = False,
) -> None:
    """Add a robot under the world: bodies ``<name>/trunk`` ..., joints and position actuators in
    policy order.

    ``collision`` and ``hits`` are its geoms' contype and conaffinity.
    """

    def body(parent, label: str, pos: tuple[float, float, float], inertial: Inertial):
        return parent.add_body(
            name=f"{name}/{label}",
            pos=pos,
            mass=inertial.mass,
            ipos=inertial.com,
            fullinertia=inertial.inertia,
            explicitinertial=True,
        )

    def geom(parent, shape: Shape, rgba, **extra):
        size = (*shape.size, 0.0, 0.0)[:3]
        return parent.add_geom(
            type=_TYPES[shape.type],
            size=size,
            pos=shape.pos,
            quat=_ALONG[shape.axis],
            rgba=rgba,
            contype=collision,
            conaffinity=hits,
            mass=0.0,
            **extra,
        )

    trunk = body(spec.worldbody, "trunk", (0.0, 0.0, robot.standing_height), robot.trunk)
    trunk.add_freejoint(name=f"{name}/root")
    for shape in robot.trunk_shapes:
        geom(trunk, shape, color)
    for leg_name, leg in zip(LEGS, robot.legs, strict=True):
        places = ((*leg.hip_pos, 0.0), (0.0, leg.side, 0.0), (0.0, 0.0, -robot.link_length))
        links = []
        parent = trunk
        for joint, pos, inertial, shapes in zip(
            LEG_JOINTS, places, leg.inertials, leg.shapes, strict=True
        ):
            parent = body(parent, f"{leg_name}_{joint}", pos, inertial)
            for shape in shapes:
                geom(parent, shape, LIMB_COLOR if joint == "calf" else color)
            links.append(parent)
        foot = Shape("sphere", (robot.foot_radius,), (0.0, 0.0, -robot.link_length))
        geom(parent, foot, FOOT_COLOR, name=f"{name}/{leg_name}_foot", condim=3)
        for joint, link, ends in zip(LEG_JOINTS, links, leg.joint_range, strict=True):
            link.add_joint(
                name=f"{name}/{leg_name}_{joint}",
                type=mujoco.mjtJoint.mjJNT_HINGE,
                axis=AXES[joint],
                range=ends,
                limited=mujoco.mjtLimited.mjLIMITED_TRUE,
            )
    limits = robot.ideal_torque_limit if has_ideal_actuators else robot.torque_limit
    for leg_name in LEGS:
        for joint, limit in zip(LEG_JOINTS, limits, strict=True):
            target = f"{name}/{leg_name}_{joint}"
            spec.add_actuator(
                name=target,
                target=target,
                trntype=mujoco.mjtTrn.mjTRN_JOINT,
                gaintype=mujoco.mjtGain.mjGAIN_FIXED,
                biastype=mujoco.mjtBias.mjBIAS_AFFINE,
                gainprm=[robot.stiffness] + [0.0] * 9,
                biasprm=[0.0, -robot.stiffness, -robot.damping] + [0.0] * 7,
                forcelimited=mujoco.mjtLimited.mjLIMITED_TRUE,
                forcerange=(-limit, limit),
            )
