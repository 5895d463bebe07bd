"""A script for two robots and a square box. They press abreast on the side away from the goal.

The script is a smooth function of observations wherever it can be, so that a policy without memory
can imitate it. It stands further left or right on the side to turn the box towards the goal, and
keeps to the side that the robots are at. A robot on wheels drives into its lane from further
behind, backs out beside it, and presses straight on.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mapush.extensions.pivoting.pivoting_team import BEHIND, NOSE, Hull, ObservedScene
from mqe.config import ConfigError
from mqe.tasks.push.keep_apart import CommandLimit
from mqe.tasks.push.scripted import APART, REST_DISTANCE
from mqe.tasks.push.task import PushTask
from mqe.world.geometry import rotate_2d, wrap_to_pi

SPACING = 0.45  # [m] between the two robots' lanes
STAY = 0.4  # weight of the robots' present side, beside 1 for the goal's direction
STEER = 0.25  # [m] largest shift of the lanes
STEER_GAIN = 1.0  # [m] shift of the lanes for one radian between push and goal
LANE_GAIN = 2.5  # [1/s]
WAY_GAIN = 2.0  # [1/s]
TURN_GAIN = 3.0  # [1/s]
# Distances [m] at which a speed begins to change, and has changed
OFF_LANE = (0.3, 0.05)  # from the lane: the walk ahead
AT_CORNER = (0.52, 0.62)  # of a nose from the side's middle: the walk back
TOUCHING = (0.55, 0.4)  # behind the side: the walk back is for robots at the side
# A robot keeps to its lane within these distances [m], and walks round the box beyond them.
AT_SIDE = (0.2, 1.5)  # behind the side, least and largest
NEAR_LANE = 0.7  # from the lane, largest
BACK_SPEED = 0.5  # [m/s] of a robot with its nose at a corner
# Of robots on wheels
FURTHER_BEHIND = 0.9  # [m] from the side to the point where they line up
TURN_ROOM = 0.42  # [m] from the side, at least, where they can turn
FUNNEL = (0.06, 0.8)  # [m] from the lane at the side, and more for every metre behind it
PRESSED_OFF = 0.35  # [m] from the lane, at most, while they press
STEER_TO_LANE = (3.0, 0.8)  # [rad/m] and [rad] largest, towards the lane
STEER_PRESSED = (0.7, 0.2)  # likewise, while they press
WHEEL_TURN_GAIN = 4.0  # [1/s]


class PressingScript:
    """Two robots pushing a square box, from observations (N, A, O) to actions (N, A, 3)."""

    def __init__(
        self, task: Any, obs_names: Sequence[str], decision_period: int, device: torch.device | str
    ) -> None:
        """Press the box of ``task``. ``obs_names`` name the observation's components.

        Raises ConfigError for other tasks, objects and teams.
        """
        if not _suits(task):
            raise ConfigError(
                "algorithm.name=hasac_taught: its script needs two robots and a square box; say "
                "--object cuboid --num_agents 2, name another teacher in algorithm.teacher, or say "
                "--algo hasac"
            )
        box = task.constants.object
        self._limit = CommandLimit(obs_names, APART, decision_period).to(device)
        self._scene = ObservedScene(obs_names, box, self._limit, device)
        self._hull = Hull(box, device)
        self._half = box.reach / math.sqrt(2.0)
        self._scale = torch.tensor(task.cfg.action_scale, device=device)
        self._speed = float(min(task.cfg.action_scale[:2]))
        # (A, 1) [m] wheels' radii: a command to the side turns a robot about a point so far behind.
        radii = [[robot.foot_radius] if robot.wheels else [0.0] for robot in task.robots]
        self._radii = torch.tensor(radii, device=device) if any(map(any, radii)) else None

    def __call__(self, obs: Tensor) -> Tensor:
        """Return every robot's actions."""
        scene = self._scene(obs)

        # The frame of the push: x into the side, y along it
        push = self._direction(scene.goal, scene.robots)
        robots = rotate_2d(scene.robots, -push.unsqueeze(-1))
        heading = wrap_to_pi(scene.heading - push).unsqueeze(-1)
        goal_angle = torch.atan2(scene.goal[..., 1], scene.goal[..., 0])
        goal_angle = wrap_to_pi(goal_angle - push).unsqueeze(-1)

        # The robot that is further left round the box has the left lane.
        bearing = torch.atan2(-robots[..., 1], -robots[..., 0])
        is_left = bearing[..., :1] < bearing[..., 1:]
        lane = torch.where(is_left, 0.5 * SPACING, -0.5 * SPACING)
        lane = lane - (STEER_GAIN * goal_angle).clamp(-STEER, STEER)

        position = robots[..., 0, :]
        behind = -position[..., :1] - self._half
        nose = position[..., 1:] + NOSE * heading.sin()
        off_lane = nose - lane

        # Ahead in the lane, and back from a corner
        ahead = self._speed * _ramp(off_lane.abs(), *OFF_LANE)
        slips = _ramp(nose.abs(), *AT_CORNER) * _ramp(behind, *TOUCHING)
        ahead = torch.lerp(ahead, torch.full_like(ahead, -BACK_SPEED), slips)
        ahead = ahead * heading.cos().clamp(min=0.0)
        across = (-LANE_GAIN * off_lane).clamp(-self._speed, self._speed)
        velocity = torch.cat((ahead, across), dim=-1)

        # The way round the box to the lane
        start = torch.cat((torch.full_like(lane, -self._half - BEHIND), lane), dim=-1)
        way = self._hull.way(position, start, behind > AT_SIDE[0])
        is_at_side = (behind > AT_SIDE[0]) & (behind < AT_SIDE[1]) & (off_lane.abs() < NEAR_LANE)
        velocity = torch.where(is_at_side, velocity, WAY_GAIN * way)
        velocity = velocity / (velocity.norm(dim=-1, keepdim=True) / self._speed).clamp(min=1.0)

        velocity_b = rotate_2d(velocity, -heading.squeeze(-1))
        command = torch.cat((velocity_b, -TURN_GAIN * heading.sin()), dim=-1)
        if self._radii is not None:
            driven = self._drive(position, heading, lane, self._radii)
            command = torch.where(self._radii > 0.0, driven, command)
        action = (self._limit(obs, command) / self._scale).clamp(-1.0, 1.0)
        is_done = scene.goal.norm(dim=-1, keepdim=True) < REST_DISTANCE
        return action.masked_fill(is_done, 0.0)

    def _drive(self, position: Tensor, heading: Tensor, lane: Tensor, radii: Tensor) -> Tensor:
        """Return the commands (N, A, 3) of robots on wheels, in the frame of the push.

        ``position`` is (N, A, 2), ``heading`` and ``lane`` are (N, A, 1).
        """
        behind = -position[..., :1] - self._half
        off_lane = position[..., 1:] - lane

        # The way round the box to a point behind the lane, forwards or backwards
        start = torch.cat((torch.full_like(lane, -self._half - FURTHER_BEHIND), lane), dim=-1)
        way = self._hull.way(position, start, behind > AT_SIDE[0])
        way = WAY_GAIN * rotate_2d(way, -heading.squeeze(-1))
        size = way.norm(dim=-1, keepdim=True).clamp(max=self._speed)
        angle = torch.atan2(way[..., 1:], way[..., :1])
        is_ahead = angle.cos() > -0.5
        angle = torch.where(is_ahead, angle, wrap_to_pi(angle + math.pi))
        speed = torch.where(is_ahead, size, -size) * angle.cos().clamp(min=0.0)
        turn = WHEEL_TURN_GAIN * angle.sin() * (2.0 * size).clamp(max=1.0)

        # Ahead in the funnel to the lane, and backwards beside it
        gain, largest = STEER_TO_LANE
        steer = (gain * off_lane).clamp(-largest, largest)
        error = wrap_to_pi(-steer - heading)
        at_side = (behind > AT_SIDE[0]) & (behind < AT_SIDE[1]) & (off_lane.abs() < NEAR_LANE)
        backs = at_side & (behind < FURTHER_BEHIND) & (heading.cos() > 0.5)
        speed = torch.where(backs, -self._speed * heading.cos(), speed)
        turn = torch.where(backs, WHEEL_TURN_GAIN * torch.sin(steer - heading), turn)
        room = (behind - AT_SIDE[0]).clamp(min=0.0)
        enters = at_side & (off_lane.abs() < FUNNEL[0] + FUNNEL[1] * room)
        enters = enters & ((heading.cos() > 0.8) | (behind > TURN_ROOM))
        ahead = self._speed * error.cos().clamp(min=0.0).square()
        speed = torch.where(enters, ahead, speed)
        turn = torch.where(enters, WHEEL_TURN_GAIN * error, turn)

        # Straight on at the side
        gain, largest = STEER_PRESSED
        error = -(gain * off_lane).clamp(-largest, largest) - heading
        presses = at_side & (behind < TURN_ROOM) & (off_lane.abs() < PRESSED_OFF)
        presses = presses & (heading.cos() > 0.85)
        speed = torch.where(presses, torch.full_like(speed, self._speed), speed)
        turn = torch.where(presses, (2.0 * error).clamp(-0.5, 0.5), turn)

        # What a yaw rate exceeds, a command to the side makes.
        turn = turn.clamp(-2.5, 2.5)
        rate = turn.clamp(-1.0, 1.0)
        return torch.cat((speed, (turn - rate) * radii, rate), dim=-1)

    @staticmethod
    def _direction(goal: Tensor, robots: Tensor) -> Tensor:
        """Return the push's angle (N, A) [rad] in the object frame, a multiple of 90 degrees."""
        towards = goal / goal.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        team = robots.mean(dim=-2)
        away = -team / team.norm(dim=-1, keepdim=True).clamp(min=0.3)
        preferred = towards + STAY * away
        angle = torch.atan2(preferred[..., 1], preferred[..., 0])
        return torch.round(angle / (0.5 * math.pi)) * (0.5 * math.pi)


def _suits(task: Any) -> bool:
    """Return whether two robots push a square box in a task."""
    if not isinstance(task, PushTask) or task.cfg.shapes is not None:
        return False
    return task.constants.object.num_equal_headings == 4 and task.num_agents == 2


def _ramp(values: Tensor, low: float, high: float) -> Tensor:
    """Return 0 at ``low``, 1 at ``high``, and a straight line between them."""
    return ((values - low) / (high - low)).clamp(0.0, 1.0)
