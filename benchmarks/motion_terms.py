"""Terms with which a team knows whether its object moves, and the critic how heavy it is.

mapush train --preset any --import motion_terms --set task.more_state=[load,object_motion] \
  --set task.more_observations=[motion]

The velocities have no observation noise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import mapush
import mqe.registry
from mqe.controllers.trot import planar_velocity
from mqe.tasks.push.features import SceneFeatures
from mqe.world.geometry import axes_along, in_frame

_sliding_forces = mqe.registry.sliding_forces
_newest: dict[Any, Tensor] = {}  # the last environment's sliding forces, by number and device


def remembered_sliding_forces(*arguments: Any) -> Tensor | None:
    """Return each world's sliding force [N], and keep it for ``load``."""
    forces = _sliding_forces(*arguments)
    _newest.clear()
    if forces is not None:
        _newest["forces"] = forces
    return forces


mqe.registry.sliding_forces = remembered_sliding_forces


def load(features: SceneFeatures) -> Tensor:
    """Push (N, 1) that slides the object [100 N], 0 before the worlds are built."""
    distance = features.state.goal_distance
    if "forces" not in _newest:
        return torch.zeros_like(distance).unsqueeze(-1)
    key = (len(distance), distance.device)
    if key not in _newest:
        forces = _newest["forces"].to(distance.device, torch.float32) / 100.0
        _newest[key] = forces.expand(len(distance)).unsqueeze(-1).contiguous()
    return _newest[key]


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


mapush.register_state("load", load, mirror_signs=(1.0,), turn=same)
mapush.register_state("object_motion", object_motion, mirror_signs=(1.0, -1.0), turn=same)
signs = (1.0, -1.0, -1.0, 1.0, -1.0)
mapush.register_observation("motion", motion, signs, turn=same, noise=0.0)
