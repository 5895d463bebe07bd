"""Followers: the next sub-goal for an object at any position.

The field's follower compares straight lines to points at most ``LOOK_AHEAD`` away, by the cost up
to the point and from there to the goal. The other follows way-points.
"""

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mapush.extensions.navigate.planners.problem import NO_ROOM_COST, Problem, lacking_room
from mqe.world.geometry import rotate_2d

LOOK_AHEAD = 2.0  # [m] from the object to its sub-goal
NUM_BEARINGS = 32  # in which the planner ``field`` looks
NUM_RADII = 8  # points that it looks at on each
NEAREST = 1.25  # [m] from the object to its sub-goal at least, unless the goal is nearer
FAR_BONUS = 0.1  # [1/m] by which it prefers a further point
NUM_SAMPLES = 128  # points of a path, evenly spaced, that is followed
STANDSTILL = 0.1  # [m] that the cost-to-go of an object that moves on is below its average at least
APPROACH = 16  # decisions that robots may take to an object that has not moved yet
_SWAY = 0.4  # [rad] that the sub-goal of an object that stands still turns to a side
_SWAY_PERIOD = 4  # decisions to both sides
# [m] that the cost-to-go of an object that is not slow is below its longer average at least: of
# 8 s, so that slow is below 0.125 m/s.
SLOW = 1.0
_PATIENCE = 12  # decisions in which an object may be slow until its sub-goal turns
_TURN = 0.8  # [rad] that it turns then, to one side and the next time to the other
_TURN_PERIOD = 16  # decisions from one turn to the next; it lasts what is beyond _PATIENCE


class Follower(Protocol):
    """A planner's sub-goals on every map."""

    def subgoal(self, position: Tensor, index: Tensor) -> Tensor:
        """Return sub-goals (N, 2) [m] for objects at ``position`` (N, 2) on maps ``index`` (N,)."""
        ...


class FieldFollower:
    """Descends the cost-to-go along straight lines of limited length."""

    def __init__(self, problem: Problem) -> None:
        """Look ahead on the maps in ``problem``."""
        device = problem.maps.goal.device
        self._problem = problem
        angles = torch.arange(NUM_BEARINGS, device=device) * (2.0 * math.pi / NUM_BEARINGS)
        self._bearings = torch.stack((angles.cos(), angles.sin()), dim=-1)  # (D, 2)
        self._shares = torch.arange(1, NUM_RADII + 1, device=device) / NUM_RADII  # (R,)

    def subgoal(self, position: Tensor, index: Tensor) -> Tensor:
        """Return the sub-goals (N, 2)."""
        problem = self._problem
        maps = problem.fields[index]
        to_goal = problem.maps.goal[index] - position
        distance = to_goal.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        to_goal = to_goal / distance
        bearings = self._bearings.expand(len(position), -1, -1)
        bearings = torch.cat((bearings, to_goal.unsqueeze(1)), dim=1)  # (N, D + 1, 2)
        reach = torch.full_like(bearings[..., 0], LOOK_AHEAD)
        reach[:, -1:] = distance.clamp(max=LOOK_AHEAD)
        radius = reach.unsqueeze(-1) * self._shares  # (N, D + 1, R)
        points = position.view(-1, 1, 1, 2) + radius.unsqueeze(-1) * bearings.unsqueeze(2)
        sampled = problem.grid.sample(maps[:, 1:], points.flatten(1, 2))
        cost, value = sampled.unflatten(2, radius.shape[1:]).unbind(dim=1)
        step = reach.unsqueeze(-1) / len(self._shares)
        lacking = lacking_room(
            problem.grid, maps[:, 0], position.unsqueeze(1), bearings, problem.reach
        )
        total = (cost * step).cumsum(dim=-1) + value - FAR_BONUS * radius
        best = (total.amin(dim=-1) + NO_ROOM_COST * lacking[..., 0]).argmin(dim=1)
        row = torch.arange(len(position), device=position.device)
        # A team pushes on only if the sub-goal is not too near.
        nearest = distance[:, 0].clamp(max=NEAREST)
        chosen = radius[row, best, total[row, best].argmin(dim=-1)]
        return position + torch.maximum(chosen, nearest).unsqueeze(-1) * bearings[row, best]


class WaypointFollower:
    """Follows a path: the sub-goal lies ``LOOK_AHEAD`` beyond the path's nearest point."""

    def __init__(self, waypoints: Tensor) -> None:
        """Follow all maps' polylines ``waypoints`` (M, P, 2)."""
        self.path, spacing = evenly_spaced(waypoints)
        self._ahead = (LOOK_AHEAD / spacing.clamp(min=1e-6)).ceil().to(torch.int64)  # (M,)

    def subgoal(self, position: Tensor, index: Tensor) -> Tensor:
        """Return the sub-goals (N, 2)."""
        path = self.path[index]
        nearest = (path - position.unsqueeze(1)).square().sum(dim=-1).argmin(dim=1)
        ahead = (nearest + self._ahead[index]).clamp(max=path.shape[1] - 1)
        row = torch.arange(len(position), device=position.device)
        return path[row, ahead]


def swayed(subgoal: Tensor, position: Tensor, standstill: Tensor) -> Tensor:
    """Return ``subgoal`` (N, 2), turned to and fro about a standing object at ``position`` (N, 2).

    ``standstill`` (N,) int64 counts the object's decisions without motion, 0 for a moving object. A
    robot stuck between walls is freed by pushing from another side.
    """
    is_left = torch.remainder(standstill, _SWAY_PERIOD) < _SWAY_PERIOD // 2
    return _to_a_side(subgoal, position, standstill > 0, is_left, _SWAY)


def turned(subgoal: Tensor, position: Tensor, slow: Tensor) -> Tensor:
    """Return ``subgoal`` (N, 2), turned to a side about an object at ``position`` (N, 2) after many
    slow decisions.

    ``slow`` (N,) int64 counts the slow decisions. A robot pushes on with its rear, at a third of a
    team's speed, until it must walk round the object.
    """
    is_turned = torch.remainder(slow, _TURN_PERIOD) >= _PATIENCE
    is_left = torch.remainder(slow, 2 * _TURN_PERIOD) < _TURN_PERIOD
    return _to_a_side(subgoal, position, is_turned, is_left, _TURN)


def _to_a_side(
    subgoal: Tensor, position: Tensor, is_turned: Tensor, is_left: Tensor, turn: float
) -> Tensor:
    """Return sub-goals (N, 2) [m]. Those of ``is_turned`` are turned by ``turn`` [rad] about
    ``position``, to the left or to the right.
    """
    angle = torch.where(is_turned, torch.where(is_left, turn, -turn), 0.0)
    return position + rotate_2d(subgoal - position, angle)


def evenly_spaced(waypoints: Tensor) -> tuple[Tensor, Tensor]:
    """Return S = ``NUM_SAMPLES`` points (M, S, 2) on each path, and their spacing (M,) [m]."""
    lengths = (waypoints[:, 1:] - waypoints[:, :-1]).norm(dim=-1)
    ends = torch.nn.functional.pad(lengths.cumsum(dim=1), (1, 0))  # (M, P)
    points = []
    for path, end in zip(waypoints.cpu().numpy(), ends.cpu().numpy(), strict=True):
        targets = np.linspace(0.0, end[-1], NUM_SAMPLES)
        points.append(np.stack([np.interp(targets, end, axis) for axis in path.T], axis=1))
    return waypoints.new_tensor(np.array(points)), ends[:, -1] / (NUM_SAMPLES - 1)
