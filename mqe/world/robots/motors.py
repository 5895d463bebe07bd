"""Motors common to several robots.

GO-M8010-6, the motor of Go1 and Go2. Reduction: Unitree's unitree_actuator_sdk (queryGearRatio).
Peak torque, knee and no-load speed: Unitree's measurement on the Go2's motor, unitree_rl_lab,
unitree_actuators.py (Go2HV: Y1, X1, X2). None is published for the Go1, whose URDF has the Go2's
limits (23.7 N m, 30.1 rad/s). Rotor, friction and damping: both robots' xacro files
(github.com/unitreerobotics/unitree_ros).
"""

from __future__ import annotations

from mqe.world.robots.robot import Motor

ROTOR_INERTIA = 0.000111842  # [kg m^2] about its axis
REDUCTION = 6.33
GO_M8010_6 = Motor(
    peak_torque=20.2,
    knee_speed=13.5,
    no_load_speed=30.0,
    armature=ROTOR_INERTIA * REDUCTION**2,
    friction=0.2,
    damping=0.01,
)
