"""The push task's reward terms as pure functions, and their presets."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mqe.tasks.push.features import StepFeatures
from mqe.tasks.push.settings import PUSH_TERMS, preset_weights
from mqe.tasks.term_settings import merged_weights
from mqe.tasks.terms import RewardTerm
from mqe.world.geometry import in_frame, length, rotate_2d, wrap_to_pi
from mqe.world.scene import STEP_DT

PUSH_SPEED = 0.1  # [m/s] an object slower than this stands still
NEAR = 1.5  # [m] from the object's centre: near enough to be part of the work (fork)
CROWD = 0.6  # [m] between two trunks: nearer is in each other's way
REACH = 0.35  # [m] from the object's outline: a trunk as near as this can push


# The reference's terms


def target(prev_distance: Tensor, distance: Tensor) -> Tensor:
    """Return 100 times twice the object's progress to its goal less 1 % of the distance left.

    Distances are (N,) [m].
    """
    return 100.0 * (2.0 * (prev_distance - distance) - 0.01 * distance)


def approach(offset: Tensor) -> Tensor:
    """Return -(d + 0.5 m)² for every robot, d its distance in space to the object's origin.

    Vectors are (N, A, 3).
    """
    return -(length(offset) + 0.5).square()


def proximity(pair_distance: Tensor) -> Tensor:
    """Return 1 / (0.02 + d / 3) for every pair, d [m] its distance in space."""
    return 1.0 / (0.02 + pair_distance / 3.0)


def push(object_linvel: Tensor) -> Tensor:
    """Return 1 for an object faster than 0.1 m/s in the plane, in any direction. Velocity is (N,
    3).
    """
    return (length(object_linvel[:, :2]) > PUSH_SPEED).float()


def ocb(inward: Tensor, goal_direction: Tensor) -> Tensor:
    """Return the occlusion-based (OCB) reward (N, A): the cosine between the way into the object
    and the way to the goal.

    Both are unit vectors of one frame.
    """
    return (inward * goal_direction).sum(dim=-1)


def expanded_direction(to_goal: Tensor, object_yaw: Tensor) -> Tensor:
    """Return the direction (N, 2) that the expanded OCB term compares with, world frame.

    It is the direction to the goal, turned back by half the difference between the goal's yaw and
    the object's. Goals have no yaw, so theirs counts as 0. The reference adds 0.01 m to both
    coordinates, so the length is not quite 1.
    """
    yaw_error = wrap_to_pi(-object_yaw)
    direction = to_goal / length(to_goal + 0.01).unsqueeze(-1)
    return rotate_2d(direction, -0.5 * yaw_error)


# The fork's and our own terms


def engagement(center_distance: Tensor) -> Tensor:
    """Return 1 at the object's centre, falling to 0 at 1.5 m (fork)."""
    return (1.0 - center_distance / NEAR).clamp(min=0.0)


def contact_weight(center_distance: Tensor) -> Tensor:
    """Return 1 within 0.8 m of the object's centre, falling to 0 at 1.6 m (fork)."""
    return (2.0 - center_distance / 0.8).clamp(0.0, 1.0)


def goal_speed(object_linvel: Tensor, goal_direction: Tensor) -> Tensor:
    """Return the object's speed towards the goal (N,) [m/s], 0 if it moves away (fork)."""
    return (object_linvel[:, :2] * goal_direction).sum(dim=-1).clamp(min=0.0)


def misalignment(ahead: Tensor, center_distance: Tensor) -> Tensor:
    """Return 0 for an object straight towards the goal, seen from the robot, up to 1 straight away
    (ours).

    Unlike the OCB term it changes smoothly on the way round the object.
    """
    return 0.5 + 0.5 * ahead / center_distance


def crowding(pair_distance: Tensor) -> Tensor:
    """Return 1 - d / 0.6 m for every pair, 0 beyond 0.6 m, d its distance in space (ours)."""
    return (1.0 - pair_distance / CROWD).clamp(min=0.0)


def _expanded_ocb(step: StepFeatures) -> Tensor:
    direction = expanded_direction(step.state.to_goal, step.state.object_yaw)
    return ocb(step.inward, in_frame(direction, step.state.object_frame).unsqueeze(1))


def _idle(step: StepFeatures) -> Tensor:
    return (1.0 - push(step.state.object_linvel)).unsqueeze(1) * (step.center_distance > 1.0)


REWARDS = PUSH_TERMS.rewards
REWARDS.update(
    {
        "reach": RewardTerm("1 once, at success", lambda step: step.terminated["success"].float()),
        "exception": RewardTerm(
            "1 once, at a fall, a collision or a collapse (a penalty: weight below 0)",
            lambda step: step.terminated.is_failure.float(),
        ),
        "target": RewardTerm(
            "100 (2 progress - 0.01 distance) of the object to the goal",
            lambda step: target(step.prev.goal_distance, step.state.goal_distance),
            "m",
        ),
        "approach": RewardTerm(
            "negative square of the distance to the object plus 0.5 m",
            lambda step: approach(step.offset),
        ),
        "collision": RewardTerm(
            "sum of 1 / (0.02 + distance / 3) over the other robots (a penalty: weight below 0)",
            lambda step: step.pairs.sum(proximity(step.pair_distance)),
        ),
        "push": RewardTerm("1 while the object moves", lambda step: push(step.state.object_linvel)),
        "ocb": RewardTerm(
            "occlusion-based (OCB) cosine between the way through the object's nearest edge and "
            "the "
            "way to the goal",
            lambda step: ocb(step.inward, step.local_goal),
        ),
        "ocb_expanded": RewardTerm(
            "OCB cosine with the way to the goal turned back by half the object's yaw",
            _expanded_ocb,
            is_same_turned=False,
        ),
        "progress": RewardTerm(
            "progress of the object towards the goal",
            lambda step: step.prev.goal_distance - step.state.goal_distance,
            "m",
        ),
        "turn": RewardTerm(
            "decrease of the object's difference from the goal's heading",
            lambda step: step.prev_heading_error.abs() - step.heading_error.abs(),
            "rad",
        ),
        "at_goal": RewardTerm(
            "1 while the object is at the goal, at rest or not",
            lambda step: step.is_at_goal.float(),
        ),
        "ocb_near": RewardTerm(
            "OCB cosine, faded out at 1 m from the object's outline",
            lambda step: (
                ocb(step.inward, step.local_goal) * (1.0 - step.outline_distance).clamp(min=0.0)
            ),
        ),
        "remoteness": RewardTerm(
            "distance to the object's outline beyond reach (a penalty: weight below 0)",
            lambda step: (step.outline_distance - REACH).clamp(min=0.0),
            "m",
        ),
        "misalignment": RewardTerm(
            "0 behind the object to 1 between it and the goal, smooth (a penalty: weight below 0)",
            lambda step: misalignment(step.ahead, step.center_distance),
        ),
        "crowding": RewardTerm(
            "sum of 1 - distance / 0.6 m over nearer robots (a penalty: weight below 0)",
            lambda step: step.pairs.sum(crowding(step.pair_distance)),
        ),
        "contact": RewardTerm(
            "number of other robots that the robot touches (a penalty: weight below 0)",
            lambda step: step.pairs.sum(step.is_touching.float()),
        ),
        "useful_impulse": RewardTerm(
            "the robot's own impulse on the object towards the goal",
            lambda step: step.state.useful_push * STEP_DT,
            "N s",
        ),
        "impulse_ahead": RewardTerm(
            "the robot's own impulse on the object towards the goal, as far as its nose points "
            "along it",
            lambda step: step.push_ahead * STEP_DT,
            "N s",
        ),
        "impulse_astray": RewardTerm(
            "the robot's own impulse on the object more than 60 degrees off its nose (a penalty: "
            "weight below 0)",
            lambda step: step.push_astray * STEP_DT,
            "N s",
        ),
        "shared_progress": RewardTerm(
            "new ground towards the goal times how equally the robots push (0 alone, 1 alike)",
            lambda step: step.shared_progress,
            "m",
        ),
        "time": RewardTerm(
            "1 at every control step (a penalty: weight below 0)",
            lambda step: torch.ones_like(step.state.goal_distance),
        ),
        "engagement": RewardTerm(
            "1 - distance to the object / 1.5 m, at least 0",
            lambda step: engagement(step.center_distance),
        ),
        "cooperation": RewardTerm(
            "1 while all robots are within 1.5 m of the object",
            lambda step: (step.center_distance < NEAR).all(dim=1).float(),
        ),
        "same_side": RewardTerm(
            "1 while all robots are behind the object, seen from the goal",
            lambda step: (step.ahead < 0.0).all(dim=1).float(),
        ),
        "blocking": RewardTerm(
            "1 while the robot is between object and goal (a penalty: weight below 0)",
            lambda step: (step.ahead >= 0.0).float(),
        ),
        "goal_push": RewardTerm(
            "speed of the object towards the goal, weighted by nearness to the object",
            lambda step: (
                goal_speed(step.state.object_linvel, step.state.goal_direction).unsqueeze(1)
                * contact_weight(step.center_distance)
            ),
            "m/s",
        ),
        "idle": RewardTerm(
            "1 while the object stands still and the robot is over 1 m away "
            "(a penalty: weight below 0)",
            _idle,
        ),
    },
)


def weights_of(
    preset: str, object_name: str, overrides: Mapping[str, float | None]
) -> dict[str, float]:
    """Return non-zero weights by term: the object's preset, under the user's own."""
    return merged_weights(REWARDS, preset_weights(preset, object_name), overrides)
