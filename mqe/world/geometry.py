"""Batched geometry: rotations, quaternions (wxyz), headings, planar frames.

Every function takes tensors with any leading shape and keeps device and type. Rotations follow
MuJoCo: a quaternion turns body coordinates into world coordinates, and roll, pitch and yaw compose
as R = Rz(yaw) Ry(pitch) Rx(roll). On a GPU every tensor operation costs the same, so several become
one operation over a table wherever possible.
"""

import math
from functools import cache, reduce

import torch
from torch import Tensor

TWO_PI = 2.0 * math.pi
HALF_PI = 0.5 * math.pi


def length(vec: Tensor) -> Tensor:
    """Return the length (...) of planar or spatial vectors (..., 2) or (..., 3)."""
    return reduce(torch.hypot, vec.unbind(dim=-1))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the scalar product (...) of vectors (..., K)."""
    return (a * b).sum(dim=-1)


def on_circle(radius: Tensor, angle: Tensor) -> Tensor:
    """Return the points (..., 2) at polar coordinates radius and angle (...). The two broadcast."""
    return torch.view_as_real(torch.polar(*torch.broadcast_tensors(radius, angle)))


def quat_from_rpy(rpy: Tensor) -> Tensor:
    """Return the quaternion (..., 4) of roll, pitch and yaw (..., 3) [rad]."""
    half = 0.5 * rpy
    factors, sign = _rpy_table(rpy.device, rpy.dtype)
    # (..., 2, 4).
    products = torch.cat((torch.cos(half), torch.sin(half)), dim=-1)[..., factors].prod(dim=-1)
    return torch.addcmul(products[..., 0, :], sign, products[..., 1, :])


def quat_from_yaw(yaw: Tensor) -> Tensor:
    """Return the quaternion (..., 4) of a rotation by yaw (...) [rad] about the vertical."""
    half = 0.5 * yaw
    zero = torch.zeros_like(half)
    return torch.stack((torch.cos(half), zero, zero, torch.sin(half)), dim=-1)


def rotation_matrix(quat: Tensor) -> Tensor:
    """Return the matrix (..., 3, 3) of unit quaternions (..., 4), from body to world coordinates.

    Its columns are the body's axes seen from the world, its rows the world's axes seen from the
    body.
    """
    left, right, constant, scale = _rotation_table(quat.device, quat.dtype)
    # (4, ...), so that every operation runs along rows as long as there are worlds.
    parts = _mirrored(quat)
    # (..., 18), two an entry.
    products = _mirrored(parts.index_select(0, left) * parts.index_select(0, right))
    entries = torch.addcmul(
        torch.addcmul(constant, scale[:9], products[..., :9]), scale[9:], products[..., 9:]
    )
    return entries.unflatten(-1, (3, 3))


def yaw_of(rotation: Tensor) -> Tensor:
    """Return yaw (...) in [-pi, pi] [rad] of rotation matrices (..., 3, 3)."""
    return torch.atan2(rotation[..., 1, 0], rotation[..., 0, 0])


def roll_pitch_of(rotation: Tensor) -> tuple[Tensor, Tensor]:
    """Return roll in [-pi, pi] and pitch in [-pi/2, pi/2] (...) [rad] of rotation matrices (...,
    3, 3).
    """
    roll = torch.atan2(rotation[..., 2, 1], rotation[..., 2, 2])
    return roll, torch.asin((-rotation[..., 2, 0]).clamp(-1.0, 1.0))


def rotate_inverse(rotation: Tensor, vec: Tensor) -> Tensor:
    """Turn world vectors (..., 3) into the body frame of rotation matrices (..., 3, 3)."""
    return (rotation * vec.unsqueeze(-1)).sum(dim=-2)


def rotate_2d(vec: Tensor, angle: Tensor) -> Tensor:
    """Turn planar vectors (..., 2) counter-clockwise by angle (...) [rad]. The two broadcast."""
    cos = torch.cos(angle)
    sin = torch.sin(angle)
    x, y = vec.unbind(dim=-1)
    return torch.stack((cos * x - sin * y, sin * x + cos * y), dim=-1)


def heading_frame(rotation: Tensor) -> Tensor:
    """Return the planar heading frames' axes (..., 2, 2), one per row, from rotations (..., 3, 3).

    The first axis (forward) is the body's x axis without its vertical part, at length 1. The second
    (left) is a quarter turn further. A vertical x axis has no heading. Its frame is zero or
    arbitrary.
    """
    entries, sign = _frame_table(rotation.device, rotation.dtype)
    forward = length(rotation[..., :2, 0]).clamp(min=1e-12)
    axes = _mirrored(_mirrored(rotation.flatten(-2)).index_select(0, entries))
    return (axes * (sign / forward.unsqueeze(-1))).unflatten(-1, (2, 2))


def axes_along(ahead: Tensor) -> Tensor:
    """Return the axes (..., 2, 2), one per row, for planar frames with x axes ``ahead`` (..., 2).

    ``ahead`` are unit vectors.
    """
    x, y = ahead.unbind(dim=-1)
    return torch.stack((x, y, -y, x), dim=-1).unflatten(-1, (2, 2))


def in_frame(vec: Tensor, frame: Tensor) -> Tensor:
    """Return planar vectors (..., 2) along the axes of frames (..., 2, 2). The two broadcast."""
    return torch.addcmul(frame[..., 0] * vec[..., :1], frame[..., 1], vec[..., 1:])


def turned(vec: Tensor, ahead: Tensor) -> Tensor:
    """Turn planar vectors (..., 2) out of frames with x axes ``ahead`` (..., 2). The two
    broadcast.
    """
    x, y = vec.split(1, dim=-1)
    return x * ahead + y * axes_along(ahead)[..., 1, :]


def crosses_box(start: Tensor, way: Tensor, half_size: Tensor) -> Tensor:
    """Return whether the lines from ``start`` (..., 2) along ``way`` (..., 2) cross a box about the
    origin, (...) bool.

    ``half_size`` (..., 2) is along x and y. A negative one stands for no box. All three broadcast.
    """
    way = torch.where(way.abs() < 1e-9, 1e-9, way)
    sides = torch.stack((-half_size - start, half_size - start)) / way
    enters = sides.amin(dim=0).amax(dim=-1)
    leaves = sides.amax(dim=0).amin(dim=-1)
    is_ahead = (leaves > 0.0) & (enters < 1.0)
    return (enters < leaves) & is_ahead & (half_size > 0.0).all(dim=-1)


def wrap_to_pi(angle: Tensor) -> Tensor:
    """Return equal angles in (-pi, pi] [rad]."""
    return math.pi - torch.remainder(math.pi - angle, TWO_PI)


def _mirrored(x: Tensor) -> Tensor:
    """Return a view with the dimensions in reverse order."""
    return x.permute(*range(x.dim() - 1, -1, -1))


@cache
def _rpy_table(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the factors and signs of a quaternion, product + sign * product.

    Factors are the half-angle cosines and sines cr cp cy sr sp sy, numbered from 0:

        w = cr cp cy + sr sp sy
        x = sr cp cy - cr sp sy
        y = cr sp cy + sr cp sy
        z = cr cp sy - sr sp cy
    """
    factors = [
        [(0, 1, 2), (3, 1, 2), (0, 4, 2), (0, 1, 5)],
        [(3, 4, 5), (0, 4, 5), (3, 1, 5), (3, 4, 2)],
    ]
    return torch.tensor(factors, device=device), torch.tensor(
        [1, -1, 1, -1], dtype=dtype, device=device
    )


@cache
def _rotation_table(
    device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return factors, constants and scales: entry = constant + scale * product + scale * product.

    Row by row, with the quaternion's components numbered from 0:

        1 - 2 (yy + zz)    2 (xy - wz)        2 (xz + wy)
        2 (xy + wz)        1 - 2 (xx + zz)    2 (yz - wx)
        2 (xz - wy)        2 (yz + wx)        1 - 2 (xx + yy)
    """
    left = [2, 1, 1, 1, 1, 2, 1, 2, 1] + [3, 0, 0, 0, 3, 0, 0, 0, 2]
    right = [2, 2, 3, 2, 1, 3, 3, 3, 1] + [3, 3, 2, 3, 3, 1, 2, 1, 2]
    scale = [-2, 2, 2, 2, -2, 2, 2, 2, -2] + [-2, -2, 2, 2, -2, -2, -2, 2, -2]
    return (
        torch.tensor(left, device=device),
        torch.tensor(right, device=device),
        torch.eye(3, dtype=dtype, device=device).flatten(),
        torch.tensor(scale, dtype=dtype, device=device),
    )


@cache
def _frame_table(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the entries, row by row from 0, and signs of forward (x, y) and left (-y, x) in a
    rotation matrix.
    """
    return torch.tensor([0, 3, 3, 0], device=device), torch.tensor(
        [1, 1, -1, 1], dtype=dtype, device=device
    )
