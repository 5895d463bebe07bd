"""Conversions between Isaac Gym's tensors and MuJoCo's, with NumPy alone."""

from __future__ import annotations

import numpy as np


def rotate(quat: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Turn vectors (..., 3) by unit quaternions (..., 4) wxyz."""
    w = quat[..., :1]
    axis = quat[..., 1:]
    twice = 2.0 * np.cross(axis, vector)
    return vector + w * twice + np.cross(axis, twice)


def to_root_states(pose: np.ndarray, velocity: np.ndarray) -> np.ndarray:
    """Return Isaac Gym's root states (..., 13) of free joints: poses (..., 7) wxyz, velocities
    (..., 6).

    MuJoCo has a free joint's angular velocity in the body's frame, Isaac Gym in the world's.
    """
    pos = pose[..., :3]
    quat = pose[..., 3:]
    turning = rotate(quat, velocity[..., 3:])
    return np.concatenate((pos, quat[..., 1:], quat[..., :1], velocity[..., :3], turning), axis=-1)


def from_root_states(states: np.ndarray) -> tuple:
    """Return poses (..., 7) and velocities (..., 6) of free joints as MuJoCo has them."""
    quat = np.concatenate((states[..., 6:7], states[..., 3:6]), axis=-1)
    inverse = quat * np.array([1.0, -1.0, -1.0, -1.0], dtype=quat.dtype)
    turning = rotate(inverse, states[..., 10:13])
    return (
        np.concatenate((states[..., :3], quat), axis=-1),
        np.concatenate((states[..., 7:10], turning), axis=-1),
    )


def material(pair: np.ndarray, other: float) -> np.ndarray:
    """Return a material's friction. Its average with ``other``, as in PhysX, is ``pair``."""
    return 2.0 * pair - other


def changed_rows(now: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return a mask (N,) of rows that differ in any bit. NaN equals itself."""
    kind = np.dtype(f"i{now.itemsize}")
    return (now.view(kind) != before.view(kind)).reshape(len(now), -1).any(axis=1)
