"""Geometry against rotations and distances worked out by hand."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import torch
from torch import Tensor, tensor

from mqe.world import geometry

HALF_PI = math.pi / 2


def random_quats(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    quat = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return quat / quat.norm(dim=-1, keepdim=True)


def turned(roll: float, pitch: float, yaw: float) -> Tensor:
    return geometry.rotation_matrix(geometry.quat_from_rpy(tensor([roll, pitch, yaw])))


def test_quarter_turns() -> None:
    half = math.sqrt(0.5)
    for k in range(3):
        rpy = torch.zeros(3)
        quat = tensor([half, 0.0, 0.0, 0.0])
        rpy[k] = HALF_PI
        quat[1 + k] = half
        torch.testing.assert_close(geometry.quat_from_rpy(rpy), quat)
    torch.testing.assert_close(
        geometry.quat_from_yaw(tensor(HALF_PI)), tensor([half, 0.0, 0.0, half])
    )


def test_rotation_order_is_roll_then_pitch_then_yaw() -> None:
    # Forward, pitched nose down by a quarter turn, points down; the yaw after it changes nothing.
    down = turned(0.0, HALF_PI, 1.0) @ tensor([1.0, 0.0, 0.0])
    torch.testing.assert_close(down, tensor([0.0, 0.0, -1.0]))
    # Left, rolled by a quarter turn, points up.
    up = turned(HALF_PI, 0.0, 0.7) @ tensor([0.0, 1.0, 0.0])
    torch.testing.assert_close(up, tensor([0.0, 0.0, 1.0]))


def test_rotation_matrices_are_mujocos() -> None:
    quat = random_quats(6).view(2, 3, 4)
    matrix = np.zeros(9)
    for index in np.ndindex(2, 3):
        mujoco.mju_quat2Mat(matrix, quat[index].numpy())
        np.testing.assert_allclose(
            geometry.rotation_matrix(quat)[index].flatten(), matrix, atol=1e-12
        )


def test_rpy_round_trip() -> None:
    rpy = tensor(
        [[0.3, -0.4, 3.0], [-3.1, 1.2, -0.2], [0.0, 0.0, math.pi], [2.0, -1.5, -3.14]],
        dtype=torch.float64,
    )
    rotation = geometry.rotation_matrix(geometry.quat_from_rpy(rpy))
    torch.testing.assert_close(torch.stack(geometry.roll_pitch_of(rotation), dim=-1), rpy[:, :2])
    torch.testing.assert_close(geometry.yaw_of(rotation), rpy[:, 2])


def test_rotate_inverse_undoes_a_rotation() -> None:
    rotation = geometry.rotation_matrix(random_quats(50))
    vec = torch.arange(150.0, dtype=torch.float64).reshape(50, 3)
    turned = (rotation @ vec.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(geometry.rotate_inverse(rotation, turned), vec)
    torch.testing.assert_close(geometry.length(turned), vec.norm(dim=-1))


def test_headings_are_level_and_of_length_1() -> None:
    # Nose 60 degrees up and heading north-east: forward is north-east all the same, left
    # north-west.
    frame = geometry.heading_frame(turned(0.0, -math.pi / 3, math.pi / 4))
    half = math.sqrt(0.5)
    torch.testing.assert_close(frame, tensor([[half, half], [-half, half]]))
    # What lies 3 m north of there is ahead and to the left.
    torch.testing.assert_close(
        geometry.in_frame(tensor([0.0, 3.0]), frame), tensor([3 * half, 3 * half])
    )
    # Nose straight down: heading nowhere.
    upright = tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]])
    assert torch.isfinite(geometry.heading_frame(upright)).all()


def test_axes_along_a_vector() -> None:
    frame = geometry.axes_along(tensor([[0.0, 1.0], [-1.0, 0.0], [0.6, 0.8]]))
    torch.testing.assert_close(
        frame,
        tensor([[[0.0, 1.0], [-1.0, 0.0]], [[-1.0, 0.0], [0.0, -1.0]], [[0.6, 0.8], [-0.8, 0.6]]]),
    )


def test_points_on_a_circle() -> None:
    points = geometry.on_circle(tensor(2.0), tensor([0.0, math.pi / 6, -HALF_PI]))
    torch.testing.assert_close(points, tensor([[2.0, 0.0], [math.sqrt(3.0), 1.0], [0.0, -2.0]]))


def test_rotate_2d() -> None:
    torch.testing.assert_close(
        geometry.rotate_2d(tensor([2.0, 1.0]), tensor(HALF_PI)), tensor([-1.0, 2.0])
    )
    many = geometry.rotate_2d(tensor([1.0, 0.0]), tensor([0.0, math.pi / 6, -HALF_PI]))
    torch.testing.assert_close(many, tensor([[1.0, 0.0], [math.sqrt(0.75), 0.5], [0.0, -1.0]]))


def test_wrap_to_pi() -> None:
    angle = tensor([0.0, 3.0, 4.0, -4.0, math.pi, -math.pi, 7.0, -100.0], dtype=torch.float64)
    two_pi = 2 * math.pi
    expected = [
        0.0,
        3.0,
        4.0 - two_pi,
        two_pi - 4.0,
        math.pi,
        math.pi,
        7.0 - two_pi,
        16 * two_pi - 100.0,
    ]
    torch.testing.assert_close(geometry.wrap_to_pi(angle), tensor(expected, dtype=torch.float64))
