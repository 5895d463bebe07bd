"""The push task's reward terms as pure functions."""

import torch
from torch import Tensor

from mqe.tasks.push.features import StepFeatures
from mqe.tasks.push.settings import PUSH_TERMS
from mqe.tasks.terms import RewardTerm
from mqe.world.geometry import dot, in_frame, length, rotate_2d, wrap_to_pi
from mqe.world.scene import STEP_DT

PUSH_SPEED = 0.1  # [m/s] an object slower than this stands still
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
    """Return the occlusion-based (OCB) reward (N, A): the cosine between the direction into the
    object and the direction to the goal.

    Both are unit vectors (N, A, 2) or (N, 1, 2) of one frame.
    """
    return dot(inward, goal_direction)


def expanded_direction(to_goal: Tensor, object_yaw: Tensor) -> Tensor:
    """Return the expanded OCB term's reference direction (N, 2), world frame.

    The direction to the goal is turned back by half the difference between the goal's yaw and the
    object's. Goals have no yaw, so their yaw counts as 0. The reference adds 0.01 m to both
    coordinates, so the length is not quite 1.
    """
    yaw_error = wrap_to_pi(-object_yaw)
    direction = to_goal / length(to_goal + 0.01).unsqueeze(-1)
    return rotate_2d(direction, -0.5 * yaw_error)


# Our own terms


def misalignment(ahead: Tensor, center_distance: Tensor) -> Tensor:
    """Return 0 for an object straight towards the goal, seen from the robot, up to 1 straight
    away.

    Unlike the OCB term it changes smoothly on the way round the object.
    """
    return 0.5 + 0.5 * ahead / center_distance


def crowding(pair_distance: Tensor) -> Tensor:
    """Return 1 - d / 0.6 m for every pair, 0 beyond 0.6 m, d its distance in space."""
    return (1.0 - pair_distance / CROWD).clamp(min=0.0)


def _expanded_ocb(step: StepFeatures) -> Tensor:
    direction = expanded_direction(step.state.to_goal, step.state.object_yaw)
    return ocb(step.inward, in_frame(direction, step.state.object_frame).unsqueeze(1))


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
            "occlusion-based (OCB) cosine between the inward normal of the object's nearest "
            "edge and the direction to the goal",
            lambda step: ocb(step.inward, step.local_goal),
        ),
        "ocb_expanded": RewardTerm(
            "OCB cosine with the direction to the goal turned back by half the object's yaw",
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
            "the robot's own impulse on the object towards the goal, weighted by the cosine "
            "between force and robot heading",
            lambda step: step.push_ahead * STEP_DT,
            "N s",
        ),
        "impulse_in_concert": RewardTerm(
            "impulse_ahead times the squared ratio of the pushes' vector sum to the sum of their "
            "magnitudes (1: all robots push one way)",
            lambda step: step.push_ahead * step.push_concert.square() * STEP_DT,
            "N s",
        ),
        "impulse_astray": RewardTerm(
            "the robot's own impulse on the object more than 60 degrees off the robot's "
            "heading (a penalty: weight below 0)",
            lambda step: step.push_astray * STEP_DT,
            "N s",
        ),
        "shared_progress": RewardTerm(
            "gained distance towards the goal times the equality of the robots' pushes (0: one "
            "idle robot, 1: equal pushes)",
            lambda step: step.shared_progress,
            "m",
        ),
        "shared_progress_ahead": RewardTerm(
            "gained distance towards the goal times the equality of the robots' pushes ahead",
            lambda step: step.shared_progress_ahead,
            "m",
        ),
        "turned_away": RewardTerm(
            "0 for a robot that faces the object's nearest point, up to 1 for one that faces away, "
            "within 0.7 m of the outline (a penalty: weight below 0)",
            lambda step: (0.5 - 0.5 * step.facing_object) * (step.outline_distance < 2.0 * REACH),
        ),
        "time": RewardTerm(
            "1 at every control step (a penalty: weight below 0)",
            lambda step: torch.ones_like(step.state.goal_distance),
        ),
    }
)
