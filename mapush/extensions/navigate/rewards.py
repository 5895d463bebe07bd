"""Rewards of the navigation task: its own, and those of the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from mapush.extensions.navigate.maps.arena_map import MOST_OBSTACLES
from mqe.config import ConfigError
from mqe.extensions import Registry
from mqe.tasks.terms import RewardTerm
from mqe.world.geometry import length

if TYPE_CHECKING:
    from mapush.extensions.navigate.features import StepFeatures


def nearness(distance: Tensor) -> Tensor:
    """Return 1 / (1 + d) for distances d (...) [m], the reference's measure of being near."""
    return 1.0 / (1.0 + distance)


def _obstacle_nearness(m: StepFeatures) -> Tensor:
    return (nearness(m.obstacle_distance) * m.is_obstacle).sum(dim=1)


REWARDS: Registry[RewardTerm] = Registry(
    "reward",
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

# Weights that differ from the terms' own.
PRESETS: dict[str, dict[str, float]] = {
    "default": {},
    "reference": {
        "progress": 0.0,
        "success": 2.0,
        "failure": 0.0,
        "object_contact": 0.0,
        "robot_contact": 0.0,
        "time": 0.0,
        "target": 0.3,
        "obstacle_nearness": -0.1,
        "trajectory": 0.5,
    },
}
# Terms that a policy which never comes to the goal may be given at every control step, and the most
# that each can be. Progress is none of these: over an episode its sum is the difference of two
# costs-to-go, and a policy that comes to the goal has all of it.
PAID_FOR_WAITING = {
    "object_contact": 1.0,
    "robot_contact": 1.0,
    "time": 1.0,
    "target": 1.0,
    "obstacle_nearness": float(MOST_OBSTACLES),
    "trajectory": 1.0,
}


def pay_for_waiting(weights: Mapping[str, float], num_steps: int) -> float:
    """Return the most that a policy which never finishes can collect in ``num_steps`` control
    steps. Terms of a user's own do not count.
    """
    positive = [most * max(0.0, weights.get(name, 0.0)) for name, most in PAID_FOR_WAITING.items()]
    return max(num_steps * sum(positive), weights.get("failure", 0.0))


def check_failing(weights: Mapping[str, float], num_steps: int) -> None:
    """Raise ConfigError for weights with which a failure at once can pay more than finishing at
    the last of ``num_steps`` control steps; progress does not count.
    """
    time = num_steps * weights.get("time", 0.0)
    finishing = weights.get("success", 0.0) + time
    failing = weights.get("failure", 0.0)
    if time < 0.0 and finishing <= failing:
        raise ConfigError(
            f"task.weights: failing at once may pay {failing:g}, and finishing after {num_steps} "
            f"control steps {finishing:g} (success={weights.get('success', 0.0):g}, "
            f"time={weights['time']:g} each); lower task.weights.failure below {finishing:g}, or "
            "raise time or success"
        )


def check_waiting(weights: Mapping[str, float], num_steps: int) -> None:
    """Raise ConfigError for weights with which never finishing can pay more than finishing."""
    progress = weights.get("progress", 0.0)
    if progress < 0.0:
        raise ConfigError(
            f"task.weights.progress: {progress:g} pays for going away from the goal; say 0 or more"
        )
    waiting = pay_for_waiting(weights, num_steps)
    finishing = weights.get("success", 0.0)
    if finishing > waiting or (waiting == 0.0 and finishing + progress > 0.0):
        return
    if waiting == 0.0:
        raise ConfigError(
            "task.weights: no term asks for the goal; say task.weights.success=10, or "
            "task.weights.progress=1"
        )
    named = [name for name in (*PAID_FOR_WAITING, "failure") if weights.get(name, 0.0) > 0.0]
    paid = ", ".join(f"{name}={weights[name]:g}" for name in named)
    raise ConfigError(
        f"task.weights: never finishing may pay up to {waiting:g} in {num_steps} control steps "
        f"({paid}), and finishing pays success={finishing:g}; raise task.weights.success above "
        f"{waiting:g}, or lower the others to 0 or less"
    )
