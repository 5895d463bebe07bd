"""Rewards of the navigation task, terminations and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from mqe.config import ConfigError
from mqe.extensions import Registry
from mqe.tasks.push.terminations import Posture, collision
from mqe.tasks.terms import MeasureTerm, MetricTerm, RewardTerm, TerminationTerm

if TYPE_CHECKING:
    from mqe.tasks.navigate.features import NavigateEpisodes

# Terms that a policy which never comes to the goal may be given at every control step, and the
# most that each is then. Progress is none of these: over an episode its sum is the difference of
# two costs-to-go, and whoever comes to the goal has all of it.
MOST_PER_STEP = {
    "object_contact": 1.0,
    "robot_contact": 1.0,
    "time": 1.0,
}


def check_waiting(weights: Mapping[str, float], num_steps: int) -> None:
    """Raise ConfigError for weights with which never finishing can pay more than finishing.

    A policy that waits may collect every term of ``MOST_PER_STEP`` whose weight is positive over
    the ``num_steps`` control steps of an episode. One that finishes at once gets the weight of
    success. Terms of a user's own count as none: they are not known here.
    """
    paid = {name: weights.get(name, 0.0) * most for name, most in MOST_PER_STEP.items()}
    waiting = num_steps * sum(max(0.0, most) for most in paid.values())
    finishing = weights.get("success", 0.0)
    progress = weights.get("progress", 0.0)
    if progress < 0.0:
        raise ConfigError(
            f"task.weights.progress: {progress:g} pays for going away from the goal; say 0 or more"
        )
    if waiting < finishing or (waiting == 0.0 and finishing + progress > 0.0):
        return
    named = ", ".join(f"{name}={weights[name]:g}" for name, most in paid.items() if most > 0.0)
    raise ConfigError(
        f"task.weights: never finishing may pay up to {waiting:g} in {num_steps} control steps "
        f"({named or 'no term asks for the goal'}), and finishing pays success={finishing:g}; "
        f"raise task.weights.success above {waiting:g}, or lower the others to 0 or less"
    )


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
    },
)

TERMINATIONS: Registry[TerminationTerm] = Registry(
    "termination",
    {
        "success": TerminationTerm(
            "the object's origin within task.success_radius of the goal",
            lambda m: m.is_success,
            is_failure=False,
        ),
        "roll": TerminationTerm(
            "a trunk rolled beyond the team's roll_limit",
            lambda m: m.is_lost[Posture.names.index("roll")],
        ),
        "pitch": TerminationTerm(
            "a trunk pitched beyond the team's pitch_limit",
            lambda m: m.is_lost[Posture.names.index("pitch")],
        ),
        "height": TerminationTerm(
            "a trunk or the object 0.35 m above or below its height at spawn",
            lambda m: m.is_lost[Posture.names.index("height")],
        ),
        "collision": TerminationTerm(
            "two trunks closer than the object's collision distance",
            lambda m: collision(m.pair_distance, m.constants.object.collision_distance),
        ),
        "collapse": TerminationTerm(
            "a robot that lies or kneels for a while", lambda m: m.is_collapsed
        ),
    },
)

MEASURES: Registry[MeasureTerm] = Registry(
    "measure",
    {
        "object_contact": MeasureTerm(
            "1 while the object touches an obstacle", lambda m: m.is_touching_obstacle[:, 0]
        ),
        "robot_contact": MeasureTerm(
            "1 while a robot touches an obstacle", lambda m: m.is_touching_obstacle[:, 1]
        ),
        "path": MeasureTerm("way of the object", lambda m: m.path, "m"),
        "shortest": MeasureTerm(
            "length of the shortest way from the start to the goal",
            lambda m: m.plan.shortest[:, 0],
            "m",
        ),
    },
)


def _fall(e: NavigateEpisodes) -> Tensor:
    return e.terminated["roll"] | e.terminated["pitch"] | e.terminated["height"]


METRICS: Registry[MetricTerm] = Registry(
    "metric",
    {
        "success": MetricTerm("1 for an end at the goal", lambda e: e.is_success),
        "collision": MetricTerm(
            "1 for an end by a collision of robots", lambda e: e.terminated["collision"]
        ),
        "fall": MetricTerm("1 for an end by a roll, a pitch or a height", _fall),
        "collapse": MetricTerm("1 for an end by a collapse", lambda e: e.terminated["collapse"]),
        "episode_time_s": MetricTerm("length of the episode", lambda e: e.time, "s"),
        "path_length": MetricTerm("way of the object", lambda e: e.sum("path"), "m"),
        "shortest_length": MetricTerm(
            "length of the shortest way around the obstacles", lambda e: e.mean("shortest"), "m"
        ),
        "spl": MetricTerm(
            "success weighed by the length of the shortest way over that of the way taken",
            lambda e: e.spl,
        ),
        "object_contact_share": MetricTerm(
            "share of control steps at which the object touches an obstacle",
            lambda e: e.mean("object_contact"),
        ),
        "robot_contact_share": MetricTerm(
            "share of control steps at which a robot touches an obstacle",
            lambda e: e.mean("robot_contact"),
        ),
    },
)
