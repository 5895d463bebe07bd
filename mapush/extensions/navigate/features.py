"""Features for the navigation task: shared quantities, each computed at its first use.

N worlds, W observed worlds (N or 2 N), A robots, K obstacles, M nearest obstacles.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from mapush.extensions.navigate.planners.problem import Problem
from mapush.extensions.navigate.settings import NUM_OBSERVED_OBSTACLES, NavigateCfg
from mqe.tasks.push import features as push
from mqe.tasks.push.features import PushConstants
from mqe.tasks.terms import EpisodeFeatures
from mqe.world.collapse import CollapseTimers
from mqe.world.geometry import axes_along, heading_frame, in_frame, length, rotation_matrix, yaw_of
from mqe.world.obstacles import PARKED_BELOW
from mqe.world.state import SceneState

PAST = (2.0, 8.0)  # [s] time constants of the averages that show whether the object moves on
_WIDE = 2.0  # [m] of room around a robot, beyond which it does not matter
_SLOPE = 0.1  # [m] from a robot's middle to the places whose room is compared


class Plan(NamedTuple):
    """The remembered part of observations, as views into one tensor."""

    SIZE = 8

    planned: Tensor  # (W, 2) [m] the planner's next sub-goal
    subgoal: Tensor  # (W, 2) [m] the sub-goal in force
    cost_to_go: Tensor  # (W, 1)
    shortest: Tensor  # (W, 1) [m] length of the shortest way from the start to the goal
    past_cost: Tensor  # (W, 2) averages of the cost-to-go over the last ``PAST`` seconds

    @classmethod
    def of(cls, values: Tensor) -> Plan:
        """Name the parts of ``values`` (W, 8)."""
        return cls(*values.split((2, 2, 1, 1, 2), dim=1))


class NavigateConstants(NamedTuple):
    """A navigation task's constants for its features."""

    cfg: NavigateCfg
    push: PushConstants  # of the team's task
    problem: Problem


class SceneFeatures(push.SceneFeatures):
    """Quantities at one moment. The plan's frame is at the object, its x axis points to the planned
    sub-goal.
    """

    def __init__(self, state: SceneState, memory: Tensor, navigate: NavigateConstants) -> None:
        """Describe ``state`` and the plan in ``memory``."""
        push.SceneFeatures.__init__(self, state, navigate.push)
        self.navigate = navigate
        self.plan = Plan.of(memory)

    @cached_property
    def to_planned(self) -> Tensor:
        """(W, 2) [m] from the object to the planned sub-goal, world frame."""
        return self.plan.planned - self.state.object_pos[:, :2]

    @cached_property
    def planned_distance(self) -> Tensor:
        """(W,) [m] from the object to the planned sub-goal."""
        return length(self.to_planned)

    @cached_property
    def plan_frame(self) -> Tensor:
        """(W, 2, 2) axes for the plan's frame."""
        ahead = self.to_planned / self.planned_distance.clamp(min=1e-6).unsqueeze(-1)
        return axes_along(ahead)

    @cached_property
    def goal_in_plan(self) -> Tensor:
        """(W, 2) [m] the goal in the plan's frame."""
        return in_frame(self.state.to_goal, self.plan_frame)

    @cached_property
    def object_in_plan(self) -> Tensor:
        """(W, 4) sine and cosine of the object's heading, and its velocity [m/s], in the plan's
        frame.
        """
        planar = torch.stack(
            (self.state.object_frame[:, 0], self.state.object_linvel[:, :2]), dim=1
        )
        ahead, velocity = in_frame(planar, self.plan_frame.unsqueeze(1)).unbind(dim=1)
        return torch.cat((ahead.flip(-1), velocity), dim=-1)

    @cached_property
    def robots_in_plan(self) -> Tensor:
        """(W, A, 4) the robots' positions [m] and headings (sine, cosine) in the plan's frame."""
        frame = self.plan_frame.unsqueeze(1)
        places = in_frame(self.offset[..., :2], frame)
        ahead = in_frame(self.state.robot_frame[..., 0, :], frame)
        return torch.cat((places, ahead.flip(-1)), dim=-1)

    @cached_property
    def subgoal_in_plan(self) -> Tensor:
        """(W, 2) [m] the current sub-goal in the plan's frame."""
        return in_frame(self.plan.subgoal - self.state.object_pos[:, :2], self.plan_frame)

    @cached_property
    def room_in_plan(self) -> Tensor:
        """(W, A, 3) distance [m] from each robot's centre to the nearest obstacle or wall, and its
        gradient along the plan's axes.
        """
        state = self.state
        axes = _SLOPE * self.plan_frame
        steps = torch.cat((torch.zeros_like(axes[:, :1]), axes, -axes), dim=1)  # (W, 5, 2)
        points = state.robot_pos[..., None, :2] + steps.unsqueeze(1)
        room = self.navigate.problem.shapes.clearance(
            points.flatten(1, 2), state.obstacle_pos, yaw_of(rotation_matrix(state.obstacle_quat))
        )
        room = room.clamp(max=_WIDE).unflatten(1, points.shape[1:3])
        slope = (room[..., 1:3] - room[..., 3:]) / (2.0 * _SLOPE)
        return torch.cat((room[..., :1], slope), dim=-1)

    @cached_property
    def is_obstacle(self) -> Tensor:
        """(W, K) bool: the obstacle is in use."""
        return self.state.obstacle_pos[..., 2] > PARKED_BELOW

    @cached_property
    def obstacles_in_plan(self) -> Tensor:
        """(W, M, 7) the nearest obstacles: position [m], heading (sine, cosine), half-extents [m],
        and 1. Missing ones are zeros.
        """
        state = self.state
        shown = state.object_pos.new_zeros(len(state.object_pos), NUM_OBSERVED_OBSTACLES, 7)
        num_obstacles = min(NUM_OBSERVED_OBSTACLES, state.num_obstacles)
        if num_obstacles == 0:
            return shown
        frame = self.plan_frame.unsqueeze(1)
        pos = state.obstacle_pos
        places = in_frame(pos[..., :2] - state.object_pos[:, None, :2], frame)
        ahead = in_frame(heading_frame(rotation_matrix(state.obstacle_quat))[:, :, 0], frame)
        half_size = self.navigate.problem.shapes.half_size.expand(len(pos), -1, -1)
        is_there = self.is_obstacle.unsqueeze(-1).float()
        entries = torch.cat((places, ahead.flip(-1), half_size, is_there), dim=-1) * is_there
        distance = length(places) + 100.0 * (1.0 - is_there[..., 0])
        nearest = distance.topk(num_obstacles, dim=1, largest=False).indices
        shown[:, :num_obstacles] = entries.gather(1, nearest.unsqueeze(-1).expand(-1, -1, 7))
        return shown


class StepFeatures(SceneFeatures, push.StepFeatures):
    """Quantities in one control step."""

    def __init__(
        self,
        state: SceneState,
        prev: SceneState,
        memory: Tensor,
        navigate: NavigateConstants,
        map_index: Tensor,
        collapse: CollapseTimers,
    ) -> None:
        """Describe the control step from ``prev`` to ``state`` on the maps ``map_index`` (N,)."""
        SceneFeatures.__init__(self, state, memory, navigate)
        self.prev = prev
        self.map_index = map_index
        self._collapse = collapse
        self._is_out = None

    @cached_property
    def is_success(self) -> Tensor:
        """(N,) bool: the object is at the goal."""
        return self.state.goal_distance < self.navigate.cfg.success_radius

    @cached_property
    def progress(self) -> Tensor:
        """(N,) the decrease of the cost-to-go."""
        before, now = (
            self.navigate.problem.cost_to_go(self.map_index, state.object_pos[:, :2])
            for state in (self.prev, self.state)
        )
        return before - now

    @cached_property
    def path(self) -> Tensor:
        """(N,) [m] the object's motion."""
        return length(self.state.object_pos[:, :2] - self.prev.object_pos[:, :2])

    @cached_property
    def is_touching_obstacle(self) -> Tensor:
        """(N, 2) bool: the object touches an obstacle, and a robot does."""
        if self.state.num_obstacles == 0:
            return torch.zeros_like(self.state.object_pos[:, :2], dtype=torch.bool)
        of_all, of_object = self.state.obstacle_contacts.unbind(dim=-1)
        touched = torch.stack((of_object, of_all - of_object), dim=-1)
        return (touched > 0.0).any(dim=1)


class NavigateEpisodes(EpisodeFeatures):
    """Quantities for finished episodes."""

    success_radius: float

    @cached_property
    def is_success(self) -> Tensor:
        """(N,) bool: the object came to the goal."""
        return self.terminated["success"]

    @cached_property
    def spl(self) -> Tensor:
        """(N,) success times the shortest path's length over the object's path length."""
        shortest = (self.mean("shortest") - self.success_radius).clamp(min=0.0)
        taken = torch.maximum(self.sum("path"), shortest).clamp(min=1e-6)
        return self.is_success * shortest / taken
