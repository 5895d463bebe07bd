"""The Unitree Go1, twice: from the reference's URDF, and from its maker's present URDF.

The reference's URDF is Unitree's first one. Unitree corrected masses, inertias, joint ranges and
limits in 2022, and added the rotors: github.com/unitreerobotics/unitree_ros,
robots/go1_description/xacro/const.xacro (commit ca57a18) and urdf/go1.urdf (4590b76). Every value
is from one of the two URDFs unless its comment names another source.
"""

from __future__ import annotations

from dataclasses import replace

from mqe.world.robots.motors import GO_M8010_6, ROTOR_INERTIA
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
TRUNK = Inertial(
    4.8,
    (0.011611, 0.004437, 0.000108),
    (0.016130741919, 0.036507810812, 0.044693872053, 0.000593180607, 7.324662e-06, 2.0969537e-05),
)
IMU = Inertial(0.001, (-0.01592, -0.06659, -0.00617), (1e-4, 1e-4, 1e-4, 0.0, 0.0, 0.0))
HIP = Inertial(
    0.510299,
    (-0.00541, -0.00074, 6e-06),
    (0.00030528937, 0.000590894859, 0.000396594572, -7.788013e-06, 2.2016e-07, -1.7175e-08),
)
THIGH = Inertial(
    0.898919,
    (-0.003468, -0.018947, -0.032736),
    (0.005395867678, 0.005142451046, 0.00102478732, 1.02809e-07, 0.000337529085, -5.816563e-06),
)
CALF = Inertial(  # of every leg: the URDF does not mirror it
    0.158015,
    (0.006286, 0.001307, -0.122269),
    (0.003607648222, 0.003626771492, 3.5148003e-05, 1.494971e-06, -0.000132778525, -2.8638535e-05),
)
FOOT = Inertial(0.06, (0.0, 0.0, -LINK_LENGTH), (9.6e-06, 9.6e-06, 9.6e-06, 0.0, 0.0, 0.0))

# The corrected URDF. The first one's calf has an inertia that no body of its mass and length has:
# its radius of gyration is 0.15 m in a link of 0.213 m. It is the inertia about the knee, not about
# the centre of mass.
PHYSICAL_TRUNK = Inertial(
    5.204,
    (0.0223, 0.002, -0.0005),
    (0.0168128557, 0.063009565, 0.0716547275, -0.0002296769, -0.0002945293, -4.18731e-05),
)
PHYSICAL_HIP = Inertial(
    0.591,
    (-0.005657, -0.008752, -0.000102),
    (0.000334008405, 0.000619101213, 0.00040057614, -1.0826066e-05, 1.290732e-06, 1.643194e-06),
)
PHYSICAL_THIGH = Inertial(
    0.92,
    (-0.003342, -0.018054, -0.033451),
    (
        0.004431760472,
        0.004485671726,
        0.000740309489,
        5.7496807e-05,
        -0.000218457134,
        0.000572001265,
    ),
)
PHYSICAL_CALF = Inertial(  # of every leg, as in the first URDF
    0.135862,
    (0.006197, 0.001408, -0.116695),
    (0.001088793059, 0.001100428748, 2.4787446e-05, -2.55679e-07, 7.117814e-06, 2.077264e-06),
)
ROTOR_MASS = 0.089  # [kg]
ROTOR_INERTIA_ACROSS = 5.9647e-05  # [kg m^2]
HIP_ROTOR_POS = 0.11215, 0.04675  # [m] in the trunk's frame, x and y
THIGH_ROTOR_Y = -0.00015  # [m] in the hip's frame
CALF_ROTOR_Y = -0.03235  # [m] in the thigh's frame

# Of the linkage to the calf: 35.55 N m and 20.06 rad/s against 23.7 N m and 30.1 rad/s.
KNEE_REDUCTION = 1.5
LOOKS = read_looks("go1")


def _leg(front: int, left: int) -> Leg:
    return Leg(
        hip_pos=(0.1881 * front, 0.04675 * left),
        side=0.08 * left,
        joint_range=(
            (-0.802851455917, 0.802851455917),
            (-1.0471975512, 4.18879020479),
            (-2.69653369433, -0.916297857297),
        ),
        joint_pos=(0.1 * left, 0.8 if front > 0 else 1.0, -1.5),
        inertials=(HIP.mirrored(front, left), THIGH.mirrored(1, left), combine(CALF, FOOT)),
        shapes=(
            (Shape("capsule", (0.046, 0.02), (0.0, 0.045 * left, 0.0), axis="y"),),
            (Shape("box", (0.017, 0.01225, 0.1065), (0.0, 0.0, -0.1065)),),
            (Shape("box", (0.008, 0.008, 0.1065), (0.0, 0.0, -0.1065)),),
        ),
        looks=mirrored_looks(LOOKS[1:], left),
    )


def _rotor(axis: str, pos: tuple[float, float, float]) -> Inertial:
    """Return a motor's rotor at rest, with rotation axis ``axis`` ("x" or "y")."""
    along = ROTOR_INERTIA
    across = ROTOR_INERTIA_ACROSS
    moments = (along, across, across) if axis == "x" else (across, along, across)
    return Inertial(ROTOR_MASS, pos, (*moments, 0.0, 0.0, 0.0))


def _physical_leg(front: int, left: int) -> Leg:
    """Return a leg of the corrected URDF. A motor sits on the link before its joint."""
    return _leg(front, left)._replace(
        joint_range=((-0.863, 0.863), (-0.686, 4.501), (-2.818, -0.888)),
        inertials=(
            combine(
                PHYSICAL_HIP.mirrored(front, left), _rotor("y", (0.0, THIGH_ROTOR_Y * left, 0.0))
            ),
            combine(PHYSICAL_THIGH.mirrored(1, left), _rotor("y", (0.0, CALF_ROTOR_Y * left, 0.0))),
            combine(PHYSICAL_CALF, FOOT),
        ),
    )


def _physical_trunk() -> Inertial:
    x, y = HIP_ROTOR_POS
    rotors = (_rotor("x", (x * front, y * left, 0.0)) for front in (1, -1) for left in (1, -1))
    return combine(PHYSICAL_TRUNK, IMU, *rotors)


_REFERENCE = RobotCfg(
    name="go1",
    trunk=combine(TRUNK, IMU),
    trunk_shapes=(
        Shape("box", (0.3762 / 2, 0.0935 / 2, 0.114 / 2)),
        Shape(
            "box", (0.02, 0.05, 0.05), (0.27, 0.0, 0.0)
        ),  # the head, only in the reference's URDF
    ),
    trunk_looks=LOOKS[0],
    legs=four_legs(_leg),
    link_length=LINK_LENGTH,
    foot_radius=0.02,
    knee_radius=0.021,
    standing_height=0.30,
    walking_height=0.28,
    low_height=0.215,  # it walks at 0.26 to 0.30 m, and at 0.20 m on one knee
    # The reference's actuator net follows its target one 5 ms physics step late. Small-signal slopes: -18.9 N m/rad of
    # the last step's error, 0.1 of the present one's, -0.9 N m s/rad of the speed (0.1 of it the lag of the position).
    stiffness=19.0,
    damping=0.8,
    # What the reference clips to (hips and thighs), and where its net saturates (21.4 at 2 rad) below its clip of 25.
    torque_limit=(20.0, 20.0, 22.0),
    gait="pretrained:go1_velocity",
    menagerie="unitree_go1/go1.xml",
)

GO1 = replace(
    _REFERENCE,
    physical=replace(
        _REFERENCE,
        trunk=_physical_trunk(),
        legs=four_legs(_physical_leg),
        motors=(GO_M8010_6, GO_M8010_6, GO_M8010_6.geared(KNEE_REDUCTION)),
        has_self_collision=True,
        gait="pretrained:go1_push",
    ),
)
