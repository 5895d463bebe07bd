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
    RobotCfg,
    Shape,
    combine,
    four_legs,
    mirrored_looks,
    read_looks,
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
LOOKS = read_looks("go2")


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
        looks=mirrored_looks(LOOKS[1:], left),
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
    trunk_looks=LOOKS[0],
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
