"""The Unitree Go2: masses, joints and collision primitives from its URDF.

The URDF is Unitree's own, github.com/unitreerobotics/unitree_ros,
robots/go2_description/urdf/go2_description.urdf. The stiffness is Isaac Lab's (UNITREE_GO2_CFG).
The nominal stance is the Go1's. The robot for ``env.model=physical`` has the same bodies: hip and
thigh contain the motors, separate links in the Go1's URDF (0.678 kg against 0.591 + 0.089 kg), so
the rotors in a later URDF would count twice.
"""

from __future__ import annotations

from dataclasses import replace

from mqe.world.robots.motors import GO_M8010_6
from mqe.world.robots.robot import (
    Inertial,
    Leg,
    Look,
    RobotCfg,
    Shape,
    beam,
    combine,
    four_legs,
    post,
)

LINK_LENGTH = 0.213  # [m]
HEAD = (0.285, 0.0, 0.01), (0.293, 0.0, -0.06)  # [m] its upper and its lower part
TRUNK = Inertial(
    6.921,
    (0.021112, 0.0, -0.005366),
    (0.02448, 0.098077, 0.107, 0.00012166, 0.0014849, -3.12e-05),
)
HEAD_PARTS = tuple(Inertial(0.001, pos, (9.6e-06, 9.6e-06, 9.6e-06, 0.0, 0.0, 0.0)) for pos in HEAD)
HIP = Inertial(
    0.678,
    (-0.0054, 0.00194, -0.000105),
    (0.00048, 0.000884, 0.000596, -3.01e-06, 1.11e-06, -1.42e-06),
)
THIGH = Inertial(
    1.152, (-0.00374, -0.0223, -0.0327), (0.00584, 0.0058, 0.00103, 8.72e-05, -0.000289, 0.000808)
)
CALF = Inertial(
    0.154, (0.00548, -0.000975, -0.115), (0.00108, 0.0011, 3.29e-05, 3.4e-07, 1.72e-05, 8.28e-06)
)
# Of the linkage to the calf: torque limits of the URDF since 2025; also 30.1 / 15.7 rad/s.
KNEE_REDUCTION = 45.43 / 23.7
FOOT = Inertial(0.04, (0.0, 0.0, -LINK_LENGTH), (9.6e-06, 9.6e-06, 9.6e-06, 0.0, 0.0, 0.0))

# What films and viewers draw, by eye: a pale body with a coloured back, a long snout and the lidar's dome below it.
TRUNK_LOOKS = (
    Look("hull", color="light", points=beam(
        (-0.215, 0.046, -0.030, 0.040, 0.016), (-0.160, 0.070, -0.050, 0.052, 0.024),
        (0.160, 0.070, -0.052, 0.054, 0.024), (0.235, 0.050, -0.040, 0.050, 0.018),
    )),
    Look("hull", color="team", points=beam(
        (-0.185, 0.034, 0.040, 0.055, 0.008), (-0.120, 0.050, 0.042, 0.068, 0.012),
        (0.120, 0.050, 0.042, 0.070, 0.012), (0.215, 0.032, 0.040, 0.058, 0.008),
    )),
    *(Look("capsule", (0.006, 0.100), (-0.01, y, 0.077), "x", "dark") for y in (0.026, -0.026)),  # rails to carry it by
    Look("hull", color="light", points=beam(
        (0.200, 0.046, -0.036, 0.052, 0.018), (0.265, 0.052, -0.022, 0.052, 0.020), (0.315, 0.040, -0.004, 0.040, 0.014)
    )),
    Look("hull", color="glass", points=beam(
        (0.285, 0.043, 0.000, 0.047, 0.014), (0.325, 0.032, 0.008, 0.036, 0.010)
    )),
    Look("box", (0.003, 0.022, 0.004), (0.325, 0.0, 0.027), color="lamp"),
    Look("cylinder", (0.032, 0.010), (0.285, 0.0, -0.026), "z", "metal"),
    Look("sphere", (0.030,), (0.285, 0.0, -0.036), color="glass"),  # the lidar
    *(
        Look("cylinder", (0.046, 0.036), (x, y, 0.0), "x", "dark")  # motors of the hips
        for x in (0.176, -0.176) for y in (0.047, -0.047)
    ),
)  # fmt: skip


def _leg_looks(left: int) -> tuple[tuple[Look, ...], tuple[Look, ...], tuple[Look, ...]]:
    return (
        (
            Look("cylinder", (0.048, 0.028), (0.0, 0.060 * left, 0.0), "y", "dark"),
            Look("cylinder", (0.034, 0.005), (0.0, 0.088 * left, 0.0), "y", "team"),
        ),
        (
            Look("cylinder", (0.046, 0.017), (0.0, 0.008 * left, 0.0), "y", "light"),
            Look("hull", color="light", points=post(
                0.004 * left, (0.034, 0.0, 0.030, 0.020), (-0.070, -0.010, 0.040, 0.022),
                (-0.165, -0.004, 0.022, 0.017), (-0.220, 0.0, 0.018, 0.014),
            )),
            Look("cylinder", (0.024, 0.018), (0.0, 0.0, -0.213), "y", "dark"),
        ),
        (
            Look("hull", color="dark", points=post(
                0.0, (0.012, 0.0, 0.018, 0.012), (-0.090, 0.020, 0.013, 0.011), (-0.200, 0.0, 0.010, 0.010)
            )),
            Look("sphere", (0.022,), (-0.002, 0.0, -LINK_LENGTH), color="rubber"),
        ),
    )  # fmt: skip


def _leg(front: int, left: int) -> Leg:
    return Leg(
        hip_pos=(0.1934 * front, 0.0465 * left),
        side=0.0955 * left,
        joint_range=(
            (-1.0472, 1.0472),
            (-1.5708, 3.4907) if front > 0 else (-0.5236, 4.5379),
            (-2.7227, -0.83776),
        ),
        joint_pos=(0.1 * left, 0.8 if front > 0 else 1.0, -1.5),
        inertials=(
            HIP.mirrored(front, left),
            THIGH.mirrored(1, left),
            combine(CALF.mirrored(1, left), FOOT),
        ),
        shapes=(
            (
                Shape("capsule", (0.046, 0.02), (0.0, 0.08 * left, 0.0), axis="y"),
            ),  # the URDF's cylinder
            (Shape("box", (0.017, 0.01225, 0.1065), (0.0, 0.0, -0.1065)),),
            # The URDF has three cylinders of radius 0.011 to 0.0155 m along a shank that bends forward by 0.02 m.
            (Shape("capsule", (0.012, 0.0885), (0.01, 0.0, -0.1005)),),
        ),
        looks=_leg_looks(left),
    )


_REFERENCE = RobotCfg(
    name="go2",
    trunk=combine(TRUNK, *HEAD_PARTS),
    trunk_shapes=(
        Shape("box", (0.3762 / 2, 0.0935 / 2, 0.114 / 2)),
        Shape(
            "sphere", (0.05,), HEAD[0]
        ),  # the URDF's upright cylinder of this radius is 0.09 m high
        Shape("sphere", (0.047,), HEAD[1]),
    ),
    trunk_looks=TRUNK_LOOKS,
    legs=four_legs(_leg),
    link_length=LINK_LENGTH,
    foot_radius=0.022,  # the URDF has its centre 2 mm further back
    knee_radius=0.021,
    # Legs as long as the Go1's, motors as stiff for its weight: it sags and walks as high.
    standing_height=0.30,
    walking_height=0.28,
    low_height=0.215,
    stiffness=25.0,
    damping=0.8,  # the Go1's; with Isaac Lab's 0.5 it still sways at 0.06 m/s four seconds after a drop
    torque_limit=(23.7, 23.7, 35.55),
    ideal_torque_limit=(23.7, 23.7, 35.55),
    gait="pretrained:go2_velocity",
    menagerie="unitree_go2/go2.xml",
)

GO2 = replace(
    _REFERENCE,
    physical=replace(
        _REFERENCE,
        motors=(GO_M8010_6, GO_M8010_6, GO_M8010_6.geared(KNEE_REDUCTION)),
        has_self_collision=True,
        gait="pretrained:go2_push",
    ),
)
