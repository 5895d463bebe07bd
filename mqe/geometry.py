"""Batched geometry: quaternions (wxyz), headings, planar rotations and outlines.

Every function takes tensors of any leading shape and keeps device and type. Rotations follow MuJoCo: a quaternion turns
body coordinates into world coordinates; roll, pitch and yaw compose as R = Rz(yaw) Ry(pitch) Rx(roll).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TWO_PI = 2.0 * math.pi


def quat_from_euler(roll: Tensor, pitch: Tensor, yaw: Tensor) -> Tensor:
    """Give the quaternion (..., 4) of roll, pitch and yaw (...) [rad]."""
    half = 0.5 * torch.stack(torch.broadcast_tensors(roll, pitch, yaw))
    (cr, cp, cy), (sr, sp, sy) = torch.cos(half), torch.sin(half)
    return torch.stack(
        (
            cr * cp * cy + sr * sp * sy,
            sr * cp * cy - cr * sp * sy,
            cr * sp * cy + sr * cp * sy,
            cr * cp * sy - sr * sp * cy,
        ),
        dim=-1,
    )


def quat_from_yaw(yaw: Tensor) -> Tensor:
    """Give the quaternion (..., 4) of a turn by yaw (...) [rad] about the vertical."""
    half = 0.5 * yaw
    zero = torch.zeros_like(half)
    return torch.stack((torch.cos(half), zero, zero, torch.sin(half)), dim=-1)


def roll_pitch_of(quat: Tensor) -> tuple[Tensor, Tensor]:
    """Give roll in (-pi, pi] and pitch in [-pi/2, pi/2] (...) [rad] of unit quaternions (..., 4)."""
    w, x, y, z = quat.unbind(dim=-1)
    roll = torch.atan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y))
    pitch = torch.asin((2.0 * (w * y - z * x)).clamp(-1.0, 1.0))
    return roll, pitch


def yaw_of(quat: Tensor) -> Tensor:
    """Give yaw (...) in (-pi, pi] [rad] of unit quaternions (..., 4)."""
    w, x, y, z = quat.unbind(dim=-1)
    return torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def quat_to_rpy(quat: Tensor) -> Tensor:
    """Give roll, pitch and yaw (..., 3) [rad] of unit quaternions (..., 4)."""
    return torch.stack((*roll_pitch_of(quat), yaw_of(quat)), dim=-1)


def rotate(quat: Tensor, vec: Tensor) -> Tensor:
    """Turn body vectors (..., 3) into the world frame by unit quaternions (..., 4)."""
    scalar, axis = quat[..., :1], quat[..., 1:]
    twice = 2.0 * torch.linalg.cross(axis, vec, dim=-1)
    return vec + scalar * twice + torch.linalg.cross(axis, twice, dim=-1)


def rotate_inverse(quat: Tensor, vec: Tensor) -> Tensor:
    """Turn world vectors (..., 3) into the body frame of unit quaternions (..., 4)."""
    scalar, axis = quat[..., :1], quat[..., 1:]
    twice = 2.0 * torch.linalg.cross(vec, axis, dim=-1)
    return vec + scalar * twice + torch.linalg.cross(twice, axis, dim=-1)


def rotate_2d(vec: Tensor, angle: Tensor) -> Tensor:
    """Turn planar vectors (..., 2) counter-clockwise by angle (...) [rad]; the two broadcast."""
    cos, sin = torch.cos(angle), torch.sin(angle)
    x, y = vec.unbind(dim=-1)
    return torch.stack((cos * x - sin * y, sin * x + cos * y), dim=-1)


def wrap_to_pi(angle: Tensor) -> Tensor:
    """Give the same angles in (-pi, pi] [rad]."""
    return math.pi - torch.remainder(math.pi - angle, TWO_PI)


class Polygon:
    """A polygon in its own frame, vertices (V, 2) counter-clockwise, edge m from vertex m to vertex m + 1."""

    def __init__(self, vertices: Tensor) -> None:
        edge = torch.roll(vertices, -1, dims=0) - vertices
        self.vertices = vertices
        self.length = torch.linalg.vector_norm(edge, dim=-1)
        self.along = edge / self.length.unsqueeze(-1)
        self.inward = torch.stack((-self.along[:, 1], self.along[:, 0]), dim=-1)
        self.zero = torch.zeros_like(self.length)

    def inward_normal(self, points: Tensor) -> Tensor:
        """Give the inward unit normal (..., 2) of the edge nearest to each point (..., 2).

        The distance to an edge is that to its nearest point. Behind a corner two edges tie exactly, because both take
        the distance to the shared vertex from one number; then the first edge wins.
        """
        x, y = points.unsqueeze(-2).unbind(dim=-1)
        x, y = x - self.vertices[:, 0], y - self.vertices[:, 1]  # (..., V) from every edge's first vertex
        along_x, along_y = self.along.unbind(dim=-1)
        foot = x * along_x + y * along_y
        height = (y * along_x - x * along_y).square()
        corner = x.square() + y.square()
        corner = torch.minimum(corner, torch.roll(corner, -1, dims=-1))
        is_beside = foot == foot.clamp(self.zero, self.length)
        return self.inward[torch.where(is_beside, height, corner).argmin(dim=-1)]


def distance_to_boxes(points: Tensor, centers: Tensor, half_sizes: Tensor) -> Tensor:
    """Give the distance (...) from points (..., 2) to a union of axis-aligned boxes (B, 2); 0 inside."""
    gap = ((points.unsqueeze(-2) - centers).abs() - half_sizes).clamp(min=0.0)
    return torch.linalg.vector_norm(gap, dim=-1).amin(dim=-1)


def distance_to_discs(points: Tensor, centers: Tensor, radii: Tensor) -> Tensor:
    """Give the distance (...) from points (..., 2) to a union of discs, centres (B, 2) and radii (B,); 0 inside."""
    gap = torch.linalg.vector_norm(points.unsqueeze(-2) - centers, dim=-1) - radii
    return gap.clamp(min=0.0).amin(dim=-1)
