"""SceneState: named world-frame tensors read from qpos and qvel."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class SceneState:
    """What the tasks see of N worlds, float32, on the simulator's device. World frame unless the name ends in ``_b``.

    The world frame's origin is the middle of the arena floor; x forward, y left, z up; quaternions wxyz.
    """

    robot_pos: Tensor  # (N, A, 3) trunk origin [m]
    robot_quat: Tensor  # (N, A, 4)
    robot_yaw: Tensor  # (N, A) [rad] in (-pi, pi]
    robot_linvel: Tensor  # (N, A, 3) [m/s]
    robot_angvel_b: Tensor  # (N, A, 3) [rad/s] body frame
    joint_pos: Tensor  # (N, A, 12) [rad], FL FR RL RR x hip thigh calf
    joint_vel: Tensor  # (N, A, 12) [rad/s]
    object_pos: Tensor  # (N, 3) [m]; zeros where the scene has no object
    object_quat: Tensor  # (N, 4)
    object_yaw: Tensor  # (N,) [rad] in (-pi, pi]
    object_linvel: Tensor  # (N, 3) [m/s]
    goal_pos: Tensor  # (N, 3) [m]
    contact_force: Tensor  # (N, A, 3) [N] net contact force of each robot on the object
