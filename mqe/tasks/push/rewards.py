"""Reward terms of the push task as pure functions, and the presets that weigh them.

Terms are unweighted, given at every control step (50 Hz) and not multiplied by its duration. A term
of shape (N,) goes to every robot of a world, one of shape (N, A) to each robot its own. Formulas
are the reference's unless they are said to be ours; its fork tried those marked "fork".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from mqe.config import ConfigError, unknown
from mqe.tasks.push.teamwork import Teamwork
from mqe.world.geometry import in_frame, length, rotate_2d, wrap_to_pi
from mqe.world.objects import Footprint
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState

PUSH_SPEED = 0.1  # [m/s] an object slower than this stands still
NEAR = 1.5  # [m] from the object's centre: near enough to be part of the work (fork)
CROWD = 0.6  # [m] between two trunks: nearer is in each other's way
REACH = 0.35  # [m] from the object's outline: a trunk as near as this can push


class Pairs:
    """The P = A (A - 1) / 2 pairs of A robots, as indices on one device."""

    def __init__(self, num_agents: int, device: torch.device | str = "cpu") -> None:
        pairs = list(combinations(range(num_agents), 2))
        self.robots = torch.tensor(pairs, dtype=torch.int64, device=device).view(-1, 2)  # (P, 2)
        own = [[k for k, pair in enumerate(pairs) if i in pair] for i in range(num_agents)]
        # (A, A - 1) the pairs that a robot is part of.
        self.own = torch.tensor(own, dtype=torch.int64, device=device)

    def distance(self, pos: Tensor) -> Tensor:
        """Return the distances (N, P) between positions (N, A, 3)."""
        both = pos[:, self.robots]
        return length(both[:, :, 0] - both[:, :, 1])

    def sum(self, values: Tensor) -> Tensor:
        """Return every robot the sum (N, A) of its pairs' values (N, P)."""
        return values[:, self.own].sum(dim=-1)


class StepFeatures:
    """What reward terms, endings and metrics of one control step share, each computed when first
    used.

    Planar unless said otherwise.
    """

    def __init__(
        self,
        state: SceneState,
        prev: SceneState,
        footprint: Footprint,
        pairs: Pairs,
        teamwork: Teamwork,
    ) -> None:
        """Describe the control step from ``prev`` to ``state``, with the team's ``teamwork`` up to
        its start.
        """
        self.state = state
        self.prev = prev
        self.footprint = footprint
        self.pairs = pairs
        self._teamwork = teamwork

    @cached_property
    def useful_push(self) -> Tensor:
        """(N, A) [N] each robot's push on the object towards the goal; negative away from it."""
        return useful_push(self.state.contact_force, self.state.goal_direction)

    @cached_property
    def shared_progress(self) -> Tensor:
        """(N,) [m] new ground towards the goal, by how equally the robots push; asking counts the
        control step.
        """
        return self._teamwork.update(
            self.useful_push, self.prev.goal_distance, self.state.goal_distance
        )

    @cached_property
    def offset(self) -> Tensor:
        """(N, A, 3) [m] from the object's origin to each trunk, in space."""
        return self.state.robot_pos - self.state.object_pos.unsqueeze(1)

    @cached_property
    def center_distance(self) -> Tensor:
        """(N, A) [m] trunk to the object's origin."""
        return length(self.offset[..., :2])

    @cached_property
    def ahead(self) -> Tensor:
        """(N, A) [m] how far each trunk is beyond the object's origin on the way to the goal;
        negative behind it.
        """
        return (self.offset[..., :2] * self.state.goal_direction.unsqueeze(1)).sum(dim=-1)

    @cached_property
    def local_robot(self) -> Tensor:
        """(N, A, 2) [m] trunks in the object frame."""
        return in_frame(self.offset[..., :2], self.state.object_frame.unsqueeze(1))

    @cached_property
    def local_goal(self) -> Tensor:
        """(N, 1, 2) ``state.goal_direction`` in the object frame."""
        return in_frame(self.state.goal_direction, self.state.object_frame).unsqueeze(1)

    @cached_property
    def outline_distance(self) -> Tensor:
        """(N, A) [m] trunk to the object's true outline, 0 inside."""
        return self.footprint.distance(self.local_robot)

    @cached_property
    def inward(self) -> Tensor:
        """(N, A, 2) the way into the object through the reward outline's nearest edge, object
        frame.
        """
        return self.footprint.push_direction(self.local_robot)

    @cached_property
    def pair_distance(self) -> Tensor:
        """(N, P) [m] between the trunks of every pair of robots, in space."""
        return self.pairs.distance(self.state.robot_pos)

    @cached_property
    def is_touching(self) -> Tensor:
        """(N, P) bool: the two robots of the pair press on one another."""
        return (self.state.robot_contact_force != 0.0).any(dim=-1)


# The reference's terms


def target(prev_distance: Tensor, distance: Tensor) -> Tensor:
    """Return 100 times twice the object's progress to its goal less 1 % of the distance left;
    distances (N,) [m].
    """
    return 100.0 * (2.0 * (prev_distance - distance) - 0.01 * distance)


def approach(offset: Tensor) -> Tensor:
    """Return -(d + 0.5 m)² of every robot, d its distance in space to the object's origin; vectors
    (N, A, 3).
    """
    return -(length(offset) + 0.5).square()


def proximity(pair_distance: Tensor) -> Tensor:
    """Return 1 / (0.02 + d / 3) of every pair, d [m] its distance in space."""
    return 1.0 / (0.02 + pair_distance / 3.0)


def push(object_linvel: Tensor) -> Tensor:
    """Return 1 where the object moves faster than 0.1 m/s in the plane, whichever way; velocity
    (N, 3).
    """
    return (length(object_linvel[:, :2]) > PUSH_SPEED).float()


def ocb(inward: Tensor, goal_direction: Tensor) -> Tensor:
    """Return the cosine (N, A) between the way into the object and the way to the goal, unit
    vectors of one frame.
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
    """Return the object's speed towards the goal (N,) [m/s], 0 where it moves away (fork)."""
    return (object_linvel[:, :2] * goal_direction).sum(dim=-1).clamp(min=0.0)


def useful_push(contact_force: Tensor, goal_direction: Tensor) -> Tensor:
    """Return each robot's push on the object towards the goal, (N, A) [N] (ours)."""
    return (contact_force[..., :2] * goal_direction.unsqueeze(1)).sum(dim=-1)


def misalignment(ahead: Tensor, center_distance: Tensor) -> Tensor:
    """Return 0 where the object lies straight towards the goal, seen from the robot, up to 1
    straight away (ours).

    Unlike the OCB term it changes smoothly on the way round the object.
    """
    return 0.5 + 0.5 * ahead / center_distance


def crowding(pair_distance: Tensor) -> Tensor:
    """Return 1 - d / 0.6 m of every pair, 0 beyond 0.6 m, d its distance in space (ours)."""
    return (1.0 - pair_distance / CROWD).clamp(min=0.0)


def _expanded_ocb(m: StepFeatures) -> Tensor:
    direction = expanded_direction(m.state.to_goal, m.state.object_yaw)
    return ocb(m.inward, in_frame(direction, m.state.object_frame).unsqueeze(1))


def _idle(m: StepFeatures) -> Tensor:
    return (1.0 - push(m.state.object_linvel)).unsqueeze(1) * (m.center_distance > 1.0)


class Term(NamedTuple):
    """A reward term: what it rewards, and its value at every control step, (N,) or (N, A)."""

    help: str
    function: Callable[[StepFeatures], Tensor]
    weight: float = 0.0  # where neither a preset nor the user weighs it

    def __call__(self, features: StepFeatures) -> Tensor:
        """Return the unweighted reward."""
        return self.function(features)


TERMS: dict[str, Term] = {
    "target": Term(
        "100 (2 progress - 0.01 distance) of the object to the goal",
        lambda m: target(m.prev.goal_distance, m.state.goal_distance),
    ),
    "approach": Term(
        "minus (distance to the object + 0.5 m) squared", lambda m: approach(m.offset)
    ),
    "collision": Term(
        "1 / (0.02 + distance / 3) to every other robot; negative",
        lambda m: m.pairs.sum(proximity(m.pair_distance)),
    ),
    "push": Term("1 while the object moves", lambda m: push(m.state.object_linvel)),
    "ocb": Term(
        "cosine between the way through the nearest edge and the way to the goal",
        lambda m: ocb(m.inward, m.local_goal),
    ),
    "ocb_expanded": Term(
        "likewise, the way to the goal turned by half the object's yaw", _expanded_ocb
    ),
    "progress": Term(
        "metres that the object came nearer to the goal",
        lambda m: m.prev.goal_distance - m.state.goal_distance,
    ),
    "ocb_near": Term(
        "ocb, faded out at 1 m from the outline",
        lambda m: ocb(m.inward, m.local_goal) * (1.0 - m.outline_distance).clamp(min=0.0),
    ),
    "remoteness": Term(
        "metres from the outline beyond reach; negative",
        lambda m: (m.outline_distance - REACH).clamp(min=0.0),
    ),
    "misalignment": Term(
        "0 behind the object, 1 between it and the goal, smooth; negative",
        lambda m: misalignment(m.ahead, m.center_distance),
    ),
    "crowding": Term(
        "1 - d / 0.6 m for every robot nearer than that; negative",
        lambda m: m.pairs.sum(crowding(m.pair_distance)),
    ),
    "contact": Term(
        "1 for every other robot that the robot touches; negative",
        lambda m: m.pairs.sum(m.is_touching.float()),
    ),
    "useful_impulse": Term(
        "own impulse on the object towards the goal [N s]", lambda m: m.useful_push * STEP_DT
    ),
    "shared_progress": Term(
        "metres of new ground towards the goal, times how equally the robots push: 0 alone, 1 "
        "alike",
        lambda m: m.shared_progress,
    ),
    "time": Term(
        "1 every control step; negative", lambda m: torch.ones_like(m.state.goal_distance)
    ),
    "engagement": Term(
        "1 - distance to the object / 1.5 m", lambda m: engagement(m.center_distance)
    ),
    "cooperation": Term(
        "1 while all robots are within 1.5 m of the object",
        lambda m: (m.center_distance < NEAR).all(dim=1).float(),
    ),
    "same_side": Term(
        "1 while all robots are behind the object, seen from the goal",
        lambda m: (m.ahead < 0.0).all(dim=1).float(),
    ),
    "blocking": Term(
        "1 while between object and goal; negative", lambda m: (m.ahead >= 0.0).float()
    ),
    "goal_push": Term(
        "object's speed towards the goal, by nearness to it",
        lambda m: (
            goal_speed(m.state.object_linvel, m.state.goal_direction).unsqueeze(1)
            * contact_weight(m.center_distance)
        ),
    ),
    "idle": Term("1 while the object stands still and is 1 m away; negative", _idle),
}

# Paid once, by the endings.
ENDING_TERMS = {
    "reach": "once, at success",
    "exception": "once, at a fall, a collision or a collapse",
}


_REPO = {
    "target": 0.00325,
    "approach": 0.00075,
    "push": 0.0015,
    "ocb": 0.004,
    "reach": 10.0,
    "exception": -5.0,
}
_PUBLISHED = {"approach": 15.0, "push": 30.0, "reach": 200_000.0, "exception": -100_000.0}

# By preset, then by object; other objects take the cuboid's. The published runs pay 20,000 times
# what the repository's configurations do, and the expanded OCB term.
PRESETS: dict[str, dict[str, dict[str, float]]] = {
    "published": {
        "cuboid": _PUBLISHED | {"target": 65.0, "collision": -50.0, "ocb_expanded": 80.0},
        "tblock": _PUBLISHED | {"target": 60.0, "collision": -40.0, "ocb_expanded": 80.0},
        "cylinder": _PUBLISHED | {"target": 50.0, "collision": -30.0, "ocb_expanded": 120.0},
    },
    "repo": {
        "cuboid": _REPO | {"collision": -0.0025},
        "tblock": _REPO | {"collision": -0.0025},
        "cylinder": _REPO | {"collision": -0.0015},
    },
    "default": {
        "cuboid": {
            "reach": 20.0,
            "exception": -20.0,
            "progress": 10.0,
            "shared_progress": 10.0,
            "misalignment": -0.02,
            "remoteness": -0.04,
            "crowding": -0.02,
            "contact": -0.02,
            "useful_impulse": 0.01,
            "time": -0.01,
        },
    },
}


def check_weights(weights: Mapping[str, float | None]) -> None:
    """Raise ConfigError for the weight of a term that does not exist."""
    for name in weights:
        if name not in TERMS and name not in ENDING_TERMS:
            raise ConfigError(
                unknown(
                    "key",
                    f"task.weights.{name}",
                    [f"task.weights.{k}" for k in (*ENDING_TERMS, *TERMS)],
                )
            )


def weights_of(
    preset: str, object_name: str, overrides: Mapping[str, float | None]
) -> dict[str, float]:
    """Return the weights that are not 0, by term: the preset's for this object, under what the
    user set.
    """
    by_object = PRESETS[preset]
    weights = by_object.get(object_name, by_object["cuboid"])
    weights = weights | {
        name: term.weight for name, term in TERMS.items() if name not in weights and term.weight
    }
    weights = weights | {name: weight for name, weight in overrides.items() if weight is not None}
    return {name: weight for name, weight in weights.items() if weight != 0.0}
