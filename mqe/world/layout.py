"""A scene's initial layout for new episodes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class MovedProps(NamedTuple):
    """Obstacles, markers and goals in the coming control step, world frame."""

    pos: Tensor  # (N, K + M, 3) [m] at its end
    velocity: Tensor | None = None  # (N, K, 2) [m/s] of the obstacles; None: none moves
    goal: Tensor | None = None  # (N, 3) [m] at its end; None: they stay


class Layout(NamedTuple):
    """The initial layout of N new episodes, one per world, world frame."""

    robot_pos: Tensor  # (N, A, 3) [m]
    robot_quat: Tensor  # (N, A, 4) wxyz
    robot_vel: Tensor  # (N, A, 6) [m/s] world, [rad/s] body
    joint_pos: Tensor  # (N, A, J) [rad]
    object_pos: Tensor  # (N, 3) [m]
    object_quat: Tensor  # (N, 4) wxyz
    goal_pos: Tensor  # (N, 3) [m]
    # (N, K, 3) [m] and (N, K, 4) wxyz of a scene with K obstacles.
    obstacle_pos: Tensor | None = None
    obstacle_quat: Tensor | None = None
