"""A reward term for gaits: feet that touch the floor stand still, also where they should swing.

mapush train --import slide --preset go1_velocity --set task.weights.slide=-0.6
"""

from torch import Tensor

import mapush
from mapush.extensions.gait.features import StepFeatures, horizontal_velocity


def slide(step: StepFeatures) -> Tensor:
    """Return the summed squared speeds (N, 1) of feet in contact, in the Go1's size."""
    feet, rates = step.robots.feet_and_rates(step.state.joint_pos, step.state.joint_vel)
    square = horizontal_velocity(step.state, feet, rates).square().sum(dim=-1)
    return (square * (step.clearance <= 0.0)).sum(dim=-1) / step.robots.size


mapush.register_reward("slide", slide, unit="m2/s2", task="go1_velocity")
