"""What ends a push episode before its time is up, as named conditions (N,) bool."""

from __future__ import annotations

from torch import Tensor

from mqe.geometry import roll_pitch_of
from mqe.tasks.layouts import SPAWN_HEIGHT

ROLL_LIMIT = 0.8  # [rad]
PITCH_LIMIT = 1.0  # [rad] ours: the reference asks for 1.6, more than a pitch angle can be
HEIGHT_LIMIT = 0.35  # [m] up or down from the height at birth


def success(goal_distance: Tensor, radius: float) -> Tensor:
    """Say where the object's origin is within ``radius`` [m] of the goal; distances (N,)."""
    return goal_distance < radius


def tilt(robot_quat: Tensor, roll_limit: float, pitch_limit: float) -> tuple[Tensor, Tensor]:
    """Say where any robot rolls, and where any pitches, beyond its limit [rad]; quaternions (N, A, 4)."""
    roll, pitch = roll_pitch_of(robot_quat)
    return (roll.abs() > roll_limit).any(dim=1), (pitch.abs() > pitch_limit).any(dim=1)


def height(robot_z: Tensor, object_z: Tensor, object_spawn_height: float) -> Tensor:
    """Say where a robot (N, A) or the object (N,) is more than 0.35 m above or below its height at birth [m]."""
    robot = ((robot_z - SPAWN_HEIGHT).abs() > HEIGHT_LIMIT).any(dim=1)
    return robot | ((object_z - object_spawn_height).abs() > HEIGHT_LIMIT)


def collision(pair_distance: Tensor, limit: float) -> Tensor:
    """Say where two robots' trunks are closer than ``limit`` [m] in space; distances of all pairs (N, P)."""
    return (pair_distance < limit).any(dim=1)
