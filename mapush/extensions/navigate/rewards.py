"""Rewards for the navigation task."""

from mapush.extensions.navigate.settings import NAVIGATE_TERMS
from mqe.tasks.terms import RewardTerm

REWARDS = NAVIGATE_TERMS.rewards
REWARDS.update(
    {
        "progress": RewardTerm(
            "decrease of the cost-to-go", lambda step: step.progress, weight=1.0
        ),
        "success": RewardTerm(
            "1 for the end at the goal",
            lambda step: step.terminated["success"].float(),
            weight=10.0,
        ),
        "failure": RewardTerm(
            "1 for an end by a failure",
            lambda step: step.terminated.is_failure.float(),
            weight=-10.0,
        ),
        "object_contact": RewardTerm(
            "1 while the object touches an obstacle",
            lambda step: step.is_touching_obstacle[:, 0].float(),
            weight=-0.02,
        ),
        "robot_contact": RewardTerm(
            "1 while a robot touches an obstacle",
            lambda step: step.is_touching_obstacle[:, 1].float(),
            weight=-0.02,
        ),
        "time": RewardTerm(
            "1 at every control step", lambda step: step.never.logical_not().float(), weight=-0.002
        ),
    }
)
