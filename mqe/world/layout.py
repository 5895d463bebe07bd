"""A scene's initial layout for new episodes."""

from typing import NamedTuple

from torch import Tensor


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
    # (N, Q) positions of the things' joints; None: as in their files.
    things: Tensor | None = None
