"""Terms with which a team and its critic know whether the object moves.

mapush train --preset any --import motion_terms --set task.more_state=[object_motion] \
  --set task.more_observations=[motion]

The velocities have no observation noise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import mapush
from mqe.controllers.trot import planar_velocity
from mqe.tasks.push.features import SceneFeatures
from mqe.world.geometry import axes_along, in_frame


def object_motion(features: SceneFeatures) -> Tensor:
    """Object velocity (N, 2): towards the goal, and across."""
    state = features.state
    return in_frame(state.object_linvel[:, :2], axes_along(state.goal_direction))


def motion(features: SceneFeatures) -> Tensor:
    """Own velocity and yaw rate, and the object's velocity (N, A, 5) in the robot's heading
    frame.
    """
    own = planar_velocity(features.state)
    object_velocity = features.state.object_linvel[:, None, :2].expand(-1, own.shape[1], -1)
    return torch.cat((own, in_frame(object_velocity, features.state.robot_frame)), dim=-1)


def same(_cfg: Any, size: int) -> tuple[range, list[float]]:
    """Return a term's image in turns of the object's heading, which it does not depend on."""
    return range(size), [1.0] * size


mapush.register_state("object_motion", object_motion, mirror_signs=(1.0, -1.0), turn=same)
signs = (1.0, -1.0, -1.0, 1.0, -1.0)
mapush.register_observation("motion", motion, signs, turn=same, noise=0.0)
