"""Distances along rays around each robot, up to obstacles and the arena's walls.

Rays pass through the object and the other robots. W worlds, A robots, K obstacles, R rays a robot.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mapush.extensions.navigate.maps.table import ObstacleShapes
from mqe.world.geometry import heading_frame, rotation_matrix
from mqe.world.state import SceneState

NUM_RAYS = 64  # of a robot; the first points ahead, the next ones further to the left
RANGE = 10.0  # [m]


def ray_directions(state: SceneState) -> Tensor:
    """Return all rays' unit vectors (W, A, R, 2) in the world frame."""
    device = state.robot_pos.device
    angles = torch.arange(NUM_RAYS, device=device) * (2.0 * math.pi / NUM_RAYS)
    around = torch.stack((angles.cos(), angles.sin()), dim=-1)
    return around @ state.robot_frame


def look_around(
    state: SceneState, directions: Tensor, shapes: ObstacleShapes, arena: tuple[float, float]
) -> Tensor:
    """Return the distances (W, A, R) [m] from the robots' centres along ``directions`` (W, A, R,
    2), at most ``RANGE``.
    """
    num_robots = directions.shape[1]
    origin = state.robot_pos[..., None, :2].expand_as(directions).flatten(1, 2)
    ray = directions.flatten(1, 2)
    distance = _to_wall(origin, ray, arena)
    if state.num_obstacles > 0:
        ahead = heading_frame(rotation_matrix(state.obstacle_quat))[:, :, 0]
        to_obstacle = shapes.cast(origin, ray, state.obstacle_pos, ahead)
        distance = torch.minimum(distance, to_obstacle)
    return distance.clamp(max=RANGE).unflatten(1, (num_robots, NUM_RAYS))


def _to_wall(origin: Tensor, ray: Tensor, arena: tuple[float, float]) -> Tensor:
    """Return the distances (W, P) [m] along rays (W, P, 2) to the walls of ``arena``."""
    x, y = (origin * ray.sign()).unbind(dim=-1)
    room = torch.stack((arena[0] / 2 - x, arena[1] / 2 - y), dim=-1)
    return (room / ray.abs().clamp(min=1e-9)).amin(dim=-1).clamp(min=0.0)
