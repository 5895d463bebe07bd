"""The velocity task's reward terms, (N, 1) at every control step, with their weights."""

import torch
from torch import Tensor

from mapush.extensions.gait.settings import VELOCITY_TERMS
from mqe.tasks.terms import RewardTerm
from mqe.world.collapse import rests_on_floor

# Lengths in the size of the Go1
FEET_TOLERANCE = 0.025  # [m] error of a foot's height that costs 63 % of its share of the term
# [m] a foot that is deeper in the floor than this costs: it landed hard, or carries too much.
SINK_DEPTH = 0.003


def excess_depth(clearance: Tensor) -> Tensor:
    """Return the summed excess depth (...,) [m] of feet in the floor, from clearances (...,
    4) [m].
    """
    return (-SINK_DEPTH - clearance).clamp(min=0.0).sum(dim=-1)


def _square(name: str, help: str, weight: float, unit: str = "1") -> RewardTerm:
    """Build a term for one of the step's sums of squares."""
    return RewardTerm(help, lambda step: step.square_sums[name], unit, weight=weight)


REWARDS = VELOCITY_TERMS.rewards
REWARDS.update(
    {
        "track_velocity": RewardTerm(
            "1 at the commanded velocity, falling with the squared error",
            lambda step: step.tracking.velocity,
            weight=1.5,
        ),
        "track_mean_velocity": RewardTerm(
            "1 if the mean velocity over a trot's cycle is the commanded one, falling with the "
            "error",
            lambda step: step.tracking.mean_velocity,
            weight=4.0,
        ),
        "track_yaw_rate": RewardTerm(
            "1 at the commanded yaw rate, falling with the squared error",
            lambda step: step.tracking.yaw_rate,
            weight=0.5,
        ),
        "track_mean_yaw_rate": RewardTerm(
            "1 if the mean yaw rate over a trot's cycle is the commanded one, falling with the "
            "error",
            lambda step: step.tracking.mean_yaw_rate,
            weight=2.0,
        ),
        "push": RewardTerm(
            "forward force against the load, relative to the largest load", lambda step: step.push
        ),
        "feet": RewardTerm(
            "1 if the feet are as high as the trot's swing wants them, falling with the error",
            lambda step: torch.exp(-step.feet_error / FEET_TOLERANCE).mean(dim=-1),
            weight=4.0,
        ),
        "alive": RewardTerm(
            "1 at every control step",
            lambda step: step.constants.one.expand(len(step.velocity), -1),
            weight=0.5,
        ),
        "height": _square(
            "height", "squared distance of the trunk from its walking height", -300.0, "m2"
        ),
        "tilt": _square("tilt", "squared sines of roll and pitch", -20.0),
        "bounce": _square("bounce", "squared vertical speed", -1.0, "m2/s2"),
        "sway": _square("sway", "squared roll and pitch rates", -0.03, "rad2/s2"),
        "slip": _square(
            "slip", "squared horizontal speeds of the feet on the floor", -0.35, "m2/s2"
        ),
        "hips": _square("hips", "squared distances of the hips from the stance", -0.3, "rad2"),
        "placement": _square(
            "placement",
            "squared distances of front and rear feet ahead of or behind their place, which lies "
            "behind the hips as far as a load asks the robot to lean",
            -100.0,
            "m2",
        ),
        "sink": RewardTerm(
            "depth of the feet in the floor beyond that of a stance",
            lambda step: excess_depth(step.clearance),
            "m",
            weight=-100.0,
        ),
        "stance": _square(
            "stance", "squared distances of all joints from the stance while standing", -0.5, "rad2"
        ),
        "rest": RewardTerm(
            "1 while a knee, thigh or trunk is on the floor",
            lambda step: rests_on_floor(step.state, step.robots).float(),
            weight=-1.0,
        ),
        "jerk": _square("jerk", "squared second differences of actions", -0.005),
        "action_rate": _square("action_rate", "squared differences of actions", -0.015),
        "torque": _square("torque", "squared torques", -2e-4, "N2 m2"),
        "fall": RewardTerm(
            "1 at a fall or a collapse", lambda step: step.terminated["fall"].float(), weight=-10.0
        ),
    }
)
