"""A reward term for gaits: feet that touch the floor stand still, also where they should swing.

mapush train --import slide --preset go1_velocity --set task.weights.slide=-6
"""

from torch import Tensor

import mapush
from mapush.extensions.gait.features import StepFeatures
from mapush.extensions.gait.measures import SLIP_SPEED, foot_motion


def slide(step: StepFeatures) -> Tensor:
    """Return the number (N, 1) of feet in contact that slip. How fast does not count."""
    motion = foot_motion(step.state, step.robots)
    # The speed's fourth power in the Go1's size
    power = (motion.speed.square() / step.robots.size / SLIP_SPEED**2).square()
    return (power / (power + 1.0) * (motion.clearance <= 0.0)).sum(dim=-1)


mapush.register_reward("slide", slide, task="go1_velocity")
