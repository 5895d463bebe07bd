"""A robot's data as bodies, joints and motors of an MjSpec."""

import colorsys

import mujoco
import numpy as np

from mqe.world.robots.robot import LEG_JOINTS, LEGS, NUM_JOINTS, Inertial, Motor, RobotCfg, Shape

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
    "ellipsoid": mujoco.mjtGeom.mjGEOM_ELLIPSOID,  # a tyre, with one contact on the floor
}
# Inertial of an idle joint's link, and of a wheel, whose mass is part of the trunk's
_LIGHT = Inertial(1e-6, (0.0, 0.0, 0.0), (1e-6, 1e-6, 1e-6, 0.0, 0.0, 0.0))
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

    def hinge(link, label: str, limit: float, motor: Motor | None = None, **extra) -> None:
        target = f"{name}/{label}"
        joint = link.add_joint(name=target, type=mujoco.mjtJoint.mjJNT_HINGE, **extra)
        actuator = spec.add_actuator(name=target, target=target, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
        if motor is None:
            # A spring-damper about the target
            actuator.forcerange = (-limit, limit)
            actuator.set_to_position(robot.stiffness, robot.damping)
            return
        # MuJoCo's DC motor with a spring-damper about the target as its controller. Its current
        # limit is the peak torque, its voltage limit the line of the torque-speed curve. The line
        # depends on the ratio of torque constant and resistance only, so the torque constant is 1.
        joint.armature = motor.armature
        joint.frictionloss = motor.friction
        joint.damping = (motor.damping, 0.0, 0.0)  # MuJoCo: a polynomial of the speed
        largest_voltage = motor.no_load_speed
        controller = [robot.stiffness, 0.0, robot.damping, 0.0, 0.0, largest_voltage]
        resistance = largest_voltage / motor.stall_torque
        actuator.set_to_dcmotor(
            [1.0, 0.0], resistance, controller=controller, ctrlspec=POSITION_INPUT
        )
        actuator.forcerange = (-motor.peak_torque, motor.peak_torque)

    thigh_length, calf_length = robot.link_lengths
    trunk = body(spec.worldbody, "trunk", (0.0, 0.0, robot.standing_height), robot.trunk)
    trunk.add_freejoint(name=f"{name}/root")
    for shape in robot.trunk_shapes:
        geom(trunk, shape, color)
    for leg_name, leg in zip(LEGS if robot.legs else (), robot.legs, strict=True):
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
        motors = robot.motors or (None, None, None)
        for joint, link, ends, limit, motor in zip(
            LEG_JOINTS, links, leg.joint_range, robot.torque_limit, motors, strict=True
        ):
            limits = {"range": ends, "limited": mujoco.mjtLimited.mjLIMITED_TRUE}
            hinge(link, f"{leg_name}_{joint}", limit, motor, axis=AXES[joint], **limits)
    # A wheel feels its rotor through the gears as its share of the robot. A light wheel would slip
    # where it should turn the robot: contacts are solved before the motors damp.
    rotor = robot.mass * robot.foot_radius**2 / max(len(robot.wheels), 1)
    # One contact on the floor, about as wide as wheels are
    tyre = Shape("ellipsoid", (robot.foot_radius, robot.foot_radius / 3, robot.foot_radius))
    # As sensors name them: the first four by legs, the others by numbers
    feet = (*LEGS, *range(len(robot.wheels)))
    # Robots with fewer joints than ``NUM_JOINTS`` have idle ones.
    for k in range(len(robot.legs) * len(LEG_JOINTS), NUM_JOINTS):
        is_wheel = k < len(robot.wheels)
        link = body(trunk, f"wheel{k}", robot.wheels[k] if is_wheel else _LIGHT.com, _LIGHT)
        if is_wheel:
            geom(link, tyre, FOOT_COLOR, name=f"{name}/{feet[k]}_foot", condim=3)
        hinge(link, f"wheel{k}", robot.torque_limit[0], axis=AXES["calf"], armature=rotor)


def _collide_with_limbs(geom: mujoco.MjsGeom, limbs: int) -> None:
    geom.contype |= limbs
    geom.conaffinity |= limbs
