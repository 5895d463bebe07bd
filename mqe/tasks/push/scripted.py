"""Scripted teams for the push task, as a yardstick for learned teams.

Robots walk round the object to the side away from the goal, line up in their order round it, push
straight on, and stop when the object is at the goal. They use their own observations only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mqe.tasks.push.keep_apart import CommandLimit
from mqe.world.geometry import axes_along, dot

if TYPE_CHECKING:
    from mqe.env.environment import MultiAgentEnv
    from mqe.tasks.push.task import PushTask

APART = 0.30  # [m] that robots keep between their trunks
CLEARANCE = 0.45  # [m] from the object's furthest corner to a robot that walks round it
SPACING = 0.45  # [m] between the lines of two robots
ALIGNED = 0.35  # [m] from its line, at which a robot begins to push
TURN_AHEAD = 0.6  # [rad] along the circle round the object, to the next point that a robot aims at
NEAR_LINE = 0.5  # [rad] from its place behind the object, at which a robot goes straight there
ASIDE = 0.9  # [m] further out than a robot that walks round: where those that do not push stand
REST_DISTANCE = 0.08  # [m] of the object from the goal, at which the team stops
LOOKED_AT = ("goal_x", "goal_y", "object_x", "object_y")


class ScriptedTeam:
    """Robots pushing side by side, from observations (N, A, O) to actions (N, A, 3)."""

    def __init__(
        self,
        obs_names: Sequence[str],
        reach: float,
        num_agents: int,
        device: torch.device,
        num_pushing: int | None,
        action_scale: Sequence[float] = (0.5, 0.5, 0.5),
        decision_period: int = 1,
    ) -> None:
        """Let the first ``num_pushing`` robots push (None: all). The others step aside.

        ``obs_names`` name an observation's components. ``reach`` [m] is the distance from the
        object's origin to its furthest corner. ``action_scale`` and ``decision_period`` are those
        of the task.
        """
        self._columns = columns_of(obs_names, LOOKED_AT, device)
        self._standoff = CLEARANCE + reach
        self._num_pushing = num_pushing or num_agents
        self._scale = torch.tensor(action_scale, device=device)
        self._limit: CommandLimit | None = None
        if num_agents > 1:
            self._limit = CommandLimit(obs_names, APART, decision_period).to(device)

    def __call__(self, obs: Tensor) -> Tensor:
        """Return every robot's actions."""
        goal, position = obs[..., self._columns].split(2, dim=-1)
        to_goal = goal - position
        distance = to_goal.norm(dim=-1, keepdim=True)
        ahead = to_goal / distance.clamp(min=1e-6)
        left = axes_along(ahead)[..., 1, :]

        # The robot's own place, seen from the object along the way to the goal.
        along = -(position * ahead).sum(dim=-1, keepdim=True)
        across = -(position * left).sum(dim=-1, keepdim=True)
        line = self._line(obs, position, ahead, left, torch.atan2(across, -along))
        off_line = across - line
        is_aligned = (along < -0.3) & (off_line.abs() < ALIGNED)
        target = torch.where(
            is_aligned,
            ahead - 2.0 * off_line * left,
            self._way_round(position, ahead, left, along, across, line),
        )

        # Robots that do not push go to the side that they are on, out of the way.
        index = torch.arange(obs.shape[1], device=obs.device).view(1, -1, 1)
        is_idle = index >= self._num_pushing
        is_aside = is_idle & (across.abs() > self._standoff + ASIDE)
        target = torch.where(is_idle, torch.where(across < 0.0, -left, left), target)

        velocity = target / target.norm(dim=-1, keepdim=True).clamp(min=0.5)
        turn = 4.0 * torch.atan2(ahead[..., 1:], ahead[..., :1])
        action = torch.cat((velocity, turn.clamp(-1.0, 1.0)), dim=-1)
        if self._limit is not None:
            action = self._limit(obs, action * self._scale) / self._scale
        is_done = distance < REST_DISTANCE
        return action.masked_fill(is_done | is_aside, 0.0)

    def _line(
        self, obs: Tensor, position: Tensor, ahead: Tensor, left: Tensor, bearing: Tensor
    ) -> Tensor:
        """Return each robot's lateral offset (N, A, 1) [m], left of the line to the goal.

        The offset follows the robots' order round the object. ``bearing`` (N, A, 1) [rad] is each
        robot's own, 0 behind the object.
        """
        if self._limit is None or self._num_pushing < obs.shape[1]:
            return torch.zeros_like(bearing)
        others, is_there = self._limit.others(obs)
        offset = others - position.unsqueeze(-2)
        behind = -dot(offset, ahead.unsqueeze(-2))
        bearings = torch.atan2(dot(offset, left.unsqueeze(-2)), behind)
        if is_there is None:
            is_there = torch.ones_like(bearings, dtype=torch.bool)
        order = ((bearings < bearing) & is_there).sum(dim=-1, keepdim=True)
        return SPACING * (order - 0.5 * is_there.sum(dim=-1, keepdim=True))

    def _way_round(
        self,
        position: Tensor,
        ahead: Tensor,
        left: Tensor,
        along: Tensor,
        across: Tensor,
        line: Tensor,
    ) -> Tensor:
        """Return the vector (N, A, 2) [m] to the robot's position behind the object, around the
        object.
        """
        behind = torch.atan2(line, torch.full_like(along, -self._standoff))
        angle = torch.atan2(across, along)
        rest = torch.remainder(behind - angle + math.pi, 2.0 * math.pi) - math.pi
        next_angle = angle + rest.clamp(-TURN_AHEAD, TURN_AHEAD)
        on_circle = position + self._standoff * (next_angle.cos() * ahead + next_angle.sin() * left)
        pushing_place = position - self._standoff * ahead + line * left
        return torch.where(rest.abs() > NEAR_LINE, on_circle, pushing_place)


def columns_of(
    obs_names: Sequence[str], names: Sequence[str], device: torch.device | str
) -> Tensor:
    """Return the columns (K,) int64 in ``obs_names`` of the K components ``names``."""
    return torch.tensor([obs_names.index(name) for name in names], device=device)


def scripted_team(env: MultiAgentEnv, num_pushing: int | None = None) -> ScriptedTeam:
    """Return a script for a team with the first ``num_pushing`` robots pushing (None: all), the
    others aside.
    """
    task: PushTask = env.task  # pyright: ignore[reportAssignmentType]
    reach = task.constants.object.reach
    return ScriptedTeam(
        task.obs_names(0),
        reach,
        env.num_agents,
        env.device,
        num_pushing,
        task.cfg.action_scale,
        env.decision_period,
    )
