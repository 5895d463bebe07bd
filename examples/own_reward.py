"""A reward term of your own: robots look at the object.

mapush train --import own_reward --set task.weights.looking=0.01
"""

from torch import Tensor

import mapush
from mqe.tasks.push.features import StepFeatures


def looking(features: StepFeatures) -> Tensor:
    """Return the cosine (N, A) between a robot's heading and the object's direction."""
    forward = features.state.robot_frame[..., 0, :]
    return -(forward * features.offset[..., :2]).sum(dim=-1) / features.center_distance


mapush.register_reward("looking", looking)
