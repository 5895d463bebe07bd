"""A robot's data as bodies, joints and motors of an MjSpec."""

from __future__ import annotations

import colorsys

import mujoco
import numpy as np

from mqe.world.robots.robot import LEG_JOINTS, LEGS, Inertial, Motor, RobotCfg, Shape

FIRST_COLORS = (  # by eye, so that teammates can be distinguished
    (0.13, 0.38, 0.80, 1.0),
    (0.93, 0.50, 0.10, 1.0),
    (0.20, 0.62, 0.30, 1.0),
    (0.62, 0.22, 0.66, 1.0),
)
GOLDEN_ANGLE = 0.381966  # of a turn round the colour circle, between further robots
LIMB_COLOR = (0.22, 0.23, 0.26, 1.0)
FOOT_COLOR = (0.05, 0.05, 0.05, 1.0)
# Bit of MuJoCo's ctrlspec: a DC motor's control is the position that it should go to.
POSITION_INPUT = 1
AXES = {"hip": (1, 0, 0), "thigh": (0, 1, 0), "calf": (0, 1, 0)}


def team_color(robot: int) -> tuple[float, float, float, float]:
    """Return the colour (red, green, blue, alpha) of robot number ``robot``."""
    if robot < len(FIRST_COLORS):
        return FIRST_COLORS[robot]
    hue = robot * GOLDEN_ANGLE % 1.0
    return (*colorsys.hsv_to_rgb(hue, 0.75, 0.75), 1.0)


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
    limbs: int = 0,
) -> None:
    """Add a robot to the world: bodies ``<name>/trunk`` ..., joints and position actuators in
    policy order.

    ``collision`` and ``hits`` are MuJoCo's bit masks contype and conaffinity of the robot's geoms.
    ``limbs`` is a further bit in both masks for collisions among thighs, calves and feet, 0 for
    none.
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

    thigh_length, calf_length = robot.link_lengths
    trunk = body(spec.worldbody, "trunk", (0.0, 0.0, robot.standing_height), robot.trunk)
    trunk.add_freejoint(name=f"{name}/root")
    for shape in robot.trunk_shapes:
        geom(trunk, shape, color)
    for leg_name, leg in zip(LEGS, robot.legs, strict=True):
        places = ((*leg.hip_pos, 0.0), (0.0, leg.side, 0.0), (0.0, 0.0, -thigh_length))
        links = []
        parent = trunk
        for joint, pos, inertial, shapes in zip(
            LEG_JOINTS, places, leg.inertials, leg.shapes, strict=True
        ):
            parent = body(parent, f"{leg_name}_{joint}", pos, inertial)
            for shape in shapes:
                link_geom = geom(parent, shape, LIMB_COLOR if joint == "calf" else color)
                if joint != "hip":
                    _collide_with_limbs(link_geom, limbs)
            links.append(parent)
        foot = Shape("sphere", (robot.foot_radius,), (0.0, 0.0, -calf_length))
        foot_geom = geom(parent, foot, FOOT_COLOR, name=f"{name}/{leg_name}_foot", condim=3)
        _collide_with_limbs(foot_geom, limbs)
        for joint, link, ends in zip(LEG_JOINTS, links, leg.joint_range, strict=True):
            link.add_joint(
                name=f"{name}/{leg_name}_{joint}",
                type=mujoco.mjtJoint.mjJNT_HINGE,
                axis=AXES[joint],
                range=ends,
                limited=mujoco.mjtLimited.mjLIMITED_TRUE,
            )
        if robot.motors is not None:
            for motor, link in zip(robot.motors, links, strict=True):
                add_motor_inertia(link.joints[0], motor)
    motors = robot.motors or (None, None, None)
    for leg_name in LEGS:
        for joint, limit, motor in zip(LEG_JOINTS, robot.torque_limit, motors, strict=True):
            target = f"{name}/{leg_name}_{joint}"
            actuator = spec.add_actuator(
                name=target, target=target, trntype=mujoco.mjtTrn.mjTRN_JOINT
            )
            if motor is None:
                make_servo(actuator, robot, (-limit, limit))
            else:
                make_dc_motor(actuator, robot, motor)


def _collide_with_limbs(geom: mujoco.MjsGeom, limbs: int) -> None:
    geom.contype |= limbs
    geom.conaffinity |= limbs


def add_motor_inertia(joint: mujoco.MjsJoint, motor: Motor) -> None:
    joint.armature = motor.armature
    joint.frictionloss = motor.friction
    joint.damping = (motor.damping, 0.0, 0.0)  # MuJoCo: a polynomial of the speed


def make_servo(actuator: mujoco.MjsActuator, robot: RobotCfg, limits: tuple[float, float]) -> None:
    """Make a spring-damper about the target, with torques within ``limits`` [N m]."""
    actuator.gaintype = mujoco.mjtGain.mjGAIN_FIXED
    actuator.biastype = mujoco.mjtBias.mjBIAS_AFFINE
    actuator.gainprm = [robot.stiffness] + [0.0] * 9
    actuator.biasprm = [0.0, -robot.stiffness, -robot.damping] + [0.0] * 7
    actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
    actuator.forcerange = limits


def make_dc_motor(actuator: mujoco.MjsActuator, robot: RobotCfg, motor: Motor) -> None:
    """Make MuJoCo's DC motor with a spring-damper about the target as its controller.

    Its current limit is the peak torque, its voltage limit the line of the torque-speed curve. The
    line depends on the ratio of torque constant and resistance only, so the torque constant is 1.
    """
    torque_constant = 1.0
    largest_voltage = torque_constant * motor.no_load_speed
    resistance = torque_constant * largest_voltage / motor.stall_torque
    controller = [robot.stiffness, 0.0, robot.damping, 0.0, 0.0, largest_voltage]
    actuator.set_to_dcmotor(
        [torque_constant, 0.0], resistance, controller=controller, ctrlspec=POSITION_INPUT
    )
    actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
    actuator.forcerange = (-motor.peak_torque, motor.peak_torque)
