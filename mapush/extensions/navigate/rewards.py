"""Rewards of the navigation task: its own, and those of the reference."""

from __future__ import annotations

from torch import Tensor

from mapush.extensions.navigate.features import StepFeatures
from mapush.extensions.navigate.settings import NAVIGATE_TERMS
from mqe.tasks.terms import RewardTerm
from mqe.world.geometry import length


def nearness(distance: Tensor) -> Tensor:
    """Return 1 / (1 + d) for distances d (...) [m], the reference's measure of being near."""
    return 1.0 / (1.0 + distance)


def _obstacle_nearness(m: StepFeatures) -> Tensor:
    return (nearness(m.obstacle_distance) * m.is_obstacle).sum(dim=1)


REWARDS = NAVIGATE_TERMS.rewards
REWARDS.update(
    {
        "progress": RewardTerm("decrease of the cost-to-go", lambda m: m.progress, weight=1.0),
        "success": RewardTerm(
            "1 for the end at the goal", lambda m: m.terminated["success"].float(), weight=10.0
        ),
        "failure": RewardTerm(
            "1 for an end by a failure", lambda m: m.terminated.is_failure.float(), weight=-10.0
        ),
        "object_contact": RewardTerm(
            "1 while the object touches an obstacle",
            lambda m: m.is_touching_obstacle[:, 0].float(),
            weight=-0.02,
        ),
        "robot_contact": RewardTerm(
            "1 while a robot touches an obstacle",
            lambda m: m.is_touching_obstacle[:, 1].float(),
            weight=-0.02,
        ),
        "time": RewardTerm(
            "1 at every control step", lambda m: m.never.logical_not().float(), weight=-0.002
        ),
        # The reference's.
        "target": RewardTerm(
            "1 / (1 m + distance of the object from the goal)",
            lambda m: nearness(m.state.goal_distance),
        ),
        "obstacle_nearness": RewardTerm(
            "sum over obstacles of 1 / (1 m + distance of the sub-goal from their middle)",
            _obstacle_nearness,
        ),
        "trajectory": RewardTerm(
            "1 / (1 m + distance of the sub-goal from the planned one)",
            lambda m: nearness(length(m.plan.subgoal - m.plan.planned)),
        ),
    },
)
