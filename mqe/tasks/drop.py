"""The reference's distribution for dropped robots at an episode's start."""

from mqe.world.robots import RobotCfg

FLOOR_SLAB = 0.02  # [m] what the reference's heights contain and ours do not
SPAWN_HEIGHT = 0.45 - FLOOR_SLAB  # [m] trunk origin above the floor, at least
LEAST_DROP = 0.1  # [m] to the standing height
TILT = (-0.01, 0.01)  # [rad] robots' roll and pitch
# [m/s] linear, world frame, and [rad/s] angular, body frame: each of the trunk's six.
VELOCITY = (-0.1, 0.1)
JOINT_SCATTER = (0.7, 1.3)  # times the nominal angle, every joint for itself


def spawn_height(robot: RobotCfg) -> float:
    """Return a robot's height [m] at a drop: the reference's, or more for a taller robot."""
    return max(SPAWN_HEIGHT, robot.standing_height + LEAST_DROP)
