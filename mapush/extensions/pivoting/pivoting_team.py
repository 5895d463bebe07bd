"""A scripted team that walks an object to the goal: it presses abreast at one end of a side, turns
the object, changes ends, and rams where the object does not move. It pushes a round object straight
at the goal.

Robots use their own observations only. Each robot follows the plan of ``push_plan`` by itself. All
observe the same scene, so they agree on the stand, and their order round the object gives each
robot its station. The plan knows the shape and the size of the team, but not the mass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from mapush.extensions.pivoting.push_plan import BINS, SPACING, make_plan
from mqe.config import ConfigError
from mqe.registry import TASKS
from mqe.tasks.push.keep_apart import CommandLimit
from mqe.tasks.push.scripted import APART, LOOKED_AT, columns_of, scripted_team
from mqe.tasks.push.task import PushTask
from mqe.world.geometry import axes_along, dot, rotate_2d, wrap_to_pi
from mqe.world.objects import NUM_OUTLINE_POINTS, Footprint, ObjectCfg
from mqe.world.scene import STEP_DT
from mqe.world.state import overwrite

if TYPE_CHECKING:
    from mqe.env.environment import MultiAgentEnv

CLEARANCE = 0.42  # [m] of a robot that walks round the object from its hull
BEHIND = 0.48  # [m] from the hull to the point where a robot lines up
TURN_AHEAD = 0.45  # [rad] round the object to the next point that a robot aims at
IN_LANE = 0.15  # [m] from its line, at which a robot begins to press
LOOSE = 0.35  # [m] from its line, at which a robot that presses gives up
TOUCH = 0.42  # [m] of a trunk's middle from a side that it touches
RUN_OUT = 1.3  # [m] behind the hull, the length of a lane
LANE_GAIN = 2.5  # [1/s]
WAY_GAIN = 2.0  # [1/s]
NOSE = 0.25  # [m] from a trunk's middle to the point that presses
TURN_GAIN = 4.0
FACING = 0.5  # [rad] off its heading, up to which a robot presses
REST_DISTANCE = 0.08  # [m] of the object from the goal, at which the team stops
MEMORY_TIME = 0.7  # [s] over which the object's place is averaged
STILL = 0.03  # [m] from that average, below which the object is stuck
PATIENCE = 0.7  # [s] of pressing before a robot rams
RUN_UP = 0.7  # [s] of walking back before a robot rams
JUMP = 0.4  # [m] between two observations, above which a new episode has begun


class PivotingTeam:
    """Robots walking an object to the goal, from observations (N, A, O) to actions (N, A, 3)."""

    def __init__(self, task: PushTask, decision_period: int, device: torch.device | str) -> None:
        """Plan for the object of ``task``."""
        obs_names = task.obs_names(0)
        obj = task.constants.object
        num_agents = task.num_agents
        action_scale = task.cfg.action_scale
        self._limit: CommandLimit | None = None
        if num_agents > 1:
            self._limit = CommandLimit(obs_names, APART, decision_period).to(device)
        self._scene = ObservedScene(obs_names, obj, self._limit, device)
        self._time_step = decision_period * STEP_DT
        self._scale = torch.tensor(action_scale, device=device)
        self._speed = float(min(action_scale[:2]))
        self._stands = (
            RoundStands(obj, device) if is_round(obj) else Stands(obj, num_agents, device)
        )
        self._hull = Hull(obj, device)
        self._memory: Memory | None = None

    def __call__(self, obs: Tensor) -> Tensor:
        """Return every robot's actions."""
        scene = self._scene(obs)
        memory = self._remember(scene)
        middle, side, normal, spacing = self._stands.at(memory.stand, scene.goal)
        along_side = axes_along(side)[..., 1, :]

        # Every robot's lane at the stand, by the robots' order round the object.
        bearings = torch.atan2(
            dot(scene.robots, along_side.unsqueeze(-2)), -dot(scene.robots, side.unsqueeze(-2))
        )
        is_before = bearings.unsqueeze(-2) < bearings.unsqueeze(-1)
        order = (is_before & scene.is_there.unsqueeze(-2)).sum(-1)
        lanes = order - 0.5 * (scene.is_there.sum(-1, keepdim=True) - 1)
        shift = (lanes * spacing).unsqueeze(-1)
        stations = middle.unsqueeze(-2) + shift * along_side.unsqueeze(-2)
        across = axes_along(normal)[..., 1, :]
        to_hull = dot(stations, normal.unsqueeze(-2)) + self._hull.reach(-normal)
        offset = scene.robots - stations
        off_lanes = dot(offset, across.unsqueeze(-2))
        behind = -dot(offset, normal.unsqueeze(-2))

        def are_in_lanes(width: float, length: Tensor | float) -> Tensor:
            """Return a mask (N, A, R) of robots in lanes from their stations back."""
            return (off_lanes.abs() < width) & (behind > 0.0) & (behind < length)

        touches = are_in_lanes(LOOSE, TOUCH)
        is_team_ready = (touches | ~scene.is_there).all(dim=-1)

        # The way to the lane's start, then ahead.
        robot_pos = scene.robots[..., 0, :]
        station = stations[..., 0, :]
        behind_hull = -(robot_pos * normal).sum(-1, keepdim=True) - self._hull.reach(-normal)
        start = station - (to_hull[..., :1] + BEHIND) * normal
        turn = wrap_to_pi(torch.atan2(normal[..., 1], normal[..., 0]) - scene.heading)
        turn = turn.unsqueeze(-1)
        enters = are_in_lanes(IN_LANE, to_hull + RUN_OUT)[..., :1]
        stays = are_in_lanes(LOOSE, to_hull + RUN_OUT)[..., :1]
        is_pressing = (enters & (turn.abs() < FACING)) | (
            memory.is_pressing & stays & (turn.abs() < 2.0 * FACING)
        )
        memory.is_pressing.copy_(is_pressing)
        way = self._hull.way(robot_pos, start, behind_hull > 0.5 * CLEARANCE)
        distance = way.norm(dim=-1, keepdim=True)
        velocity = way / distance.clamp(min=1e-6) * (WAY_GAIN * distance).clamp(max=self._speed)
        ahead = torch.stack((scene.heading.cos(), scene.heading.sin()), dim=-1)
        nose = robot_pos + NOSE * ahead
        nose_off = ((nose - station) * across).sum(-1, keepdim=True)
        straight = self._speed * normal - LANE_GAIN * nose_off * across
        velocity = torch.where(is_pressing, straight, velocity)

        # A team that presses in vain walks back and rams.
        rams = memory.rams(scene.goal, is_team_ready, self._time_step)
        back = rams.unsqueeze(-1) & is_pressing
        velocity = torch.where(
            back, -self._speed * normal - LANE_GAIN * off_lanes[..., :1] * across, velocity
        )

        velocity_b = rotate_2d(velocity, -scene.heading)
        yaw_rate = (TURN_GAIN * turn).clamp(-self._scale[2], self._scale[2])
        command = torch.cat((velocity_b, yaw_rate), dim=-1)
        if self._limit is not None:
            command = self._limit(obs, command)
        action = (command / self._scale).clamp(-1.0, 1.0)
        is_done = scene.goal.norm(dim=-1, keepdim=True) < REST_DISTANCE
        return action.masked_fill(is_done, 0.0)

    def reset_memory(self, done: Tensor) -> None:
        """Reset the memory in worlds with an ended episode, ``done`` (N,) bool."""
        if self._memory is not None:
            self._memory.last_goal.masked_fill_(done.view(-1, 1, 1), torch.inf)

    def _remember(self, scene: Seen) -> Memory:
        """Return the memory with each robot's next stand."""
        memory = self._memory
        if memory is None or memory.stand.shape != scene.goal.shape[:2]:
            memory = self._memory = Memory(scene.goal)
        is_new = memory.watch(scene.goal, scene.robots[..., 0, :])
        is_there = scene.is_there.unsqueeze(-1)
        mean = (scene.robots * is_there).sum(-2) / is_there.sum(-2).clamp(min=1)
        memory.stand_at(self._stands.after(memory.stand, is_new, mean, scene.goal))
        return memory


class Stands:
    """Pushing positions of a team, planned for an object with straight sides."""

    def __init__(self, obj: ObjectCfg, num_agents: int, device: torch.device | str) -> None:
        plan = make_plan(obj, num_agents)
        self._middles = torch.tensor(plan.middles, dtype=torch.float32, device=device)
        self._normals = torch.tensor(plan.normals, dtype=torch.float32, device=device)
        self._directions = torch.tensor(plan.directions, dtype=torch.float32, device=device)
        self._spacing = torch.tensor(plan.spacing, dtype=torch.float32, device=device)
        self._choice = torch.tensor(plan.choice, device=device)

    def after(self, stand: Tensor, is_new: Tensor, position: Tensor, goal: Tensor) -> Tensor:
        """Return the next stand (N, A) after ``stand`` (N, A), or in episodes ``is_new`` (N, A)
        after the stand nearest to ``position``.

        The team's ``position`` and the ``goal`` are (N, A, 2) [m], object frame.
        """
        teams = self._middles - 0.4 * self._normals  # [m] middles of pressing teams
        nearest = (position.unsqueeze(-2) - teams).norm(dim=-1).argmin(dim=-1)
        stand = torch.where(is_new, nearest, stand)
        angle = torch.atan2(goal[..., 1], goal[..., 0])
        bins = torch.round(angle / (2.0 * math.pi / BINS)).long() % BINS
        return self._choice[bins, stand]

    def at(self, stand: Tensor, goal: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return centres (N, A, 2) [m], sides' normals (N, A, 2), push directions (N, A, 2) and
        spacings (N, A, 1) [m] of stands (N, A).
        """
        spacing = self._spacing[stand].unsqueeze(-1)
        return self._middles[stand], self._normals[stand], self._directions[stand], spacing


class RoundStands:
    """The one stand at a round object, on the far side from the goal."""

    def __init__(self, obj: ObjectCfg, device: torch.device | str) -> None:
        self._spacing = torch.tensor(SPACING, device=device)
        self._radius = obj.reach

    def after(self, stand: Tensor, *_: Tensor) -> Tensor:
        """Return stand 0 (N, A)."""
        return torch.zeros_like(stand)

    def at(self, stand: Tensor, goal: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the same quantities as ``Stands.at``."""
        towards = goal / goal.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        return -self._radius * towards, towards, towards, self._spacing


def is_round(obj: ObjectCfg) -> bool:
    """Return whether an object has equal appearance at all headings."""
    return obj.num_equal_headings == 0


class Memory:
    """Each robot's state between decisions in a pivoting team, (N, A)."""

    def __init__(self, goal: Tensor) -> None:
        self.stand = torch.zeros(goal.shape[:2], dtype=torch.int64, device=goal.device)
        self.last_goal = torch.full_like(goal, torch.inf)
        self.last_position = torch.full_like(goal, torch.inf)
        self.goal = goal.clone()
        self.pressed = torch.zeros_like(goal[..., 0])
        self.back = torch.zeros_like(goal[..., 0])
        self.is_pressing = torch.zeros_like(goal[..., :1], dtype=torch.bool)

    def watch(self, goal: Tensor, position: Tensor) -> Tensor:
        """Return a mask (N, A) of new episodes, and begin them: goal or robot has jumped."""
        moved = (goal - self.last_goal).norm(dim=-1)
        walked = (position - self.last_position).norm(dim=-1)
        is_new = (moved > JUMP) | (walked > JUMP)
        self.last_goal.copy_(goal)
        self.last_position.copy_(position)
        overwrite(self.goal, is_new, goal)
        self._begin_anew(is_new)
        return is_new

    def stand_at(self, stand: Tensor) -> None:
        """Send each robot to a stand (N, A)."""
        is_other = stand != self.stand
        self._begin_anew(is_other)
        self.is_pressing.masked_fill_(is_other.unsqueeze(-1), False)
        self.stand.copy_(stand)

    def rams(self, goal: Tensor, is_ready: Tensor, time_step: float) -> Tensor:
        """Return a mask (N, A) of robots walking back to ram a stuck object."""
        self.goal.lerp_(goal, time_step / MEMORY_TIME)
        is_still = (goal - self.goal).norm(dim=-1) < STILL
        self.pressed.add_(time_step).mul_(is_ready)
        self.back.sub_(time_step).clamp_(min=0.0)
        is_stuck = is_still & (self.pressed > PATIENCE)
        self.back.masked_fill_(is_stuck, RUN_UP)
        self.pressed.masked_fill_(is_stuck, 0.0)
        return self.back > 0.0

    def _begin_anew(self, mask: Tensor) -> None:
        """End all pressing and walking back in ``mask`` (N, A)."""
        self.pressed.masked_fill_(mask, 0.0)
        self.back.masked_fill_(mask, 0.0)


class Seen(NamedTuple):
    """The scene in the object frame, as each robot observes it."""

    goal: Tensor  # (N, A, 2) [m] from the object's origin
    heading: Tensor  # (N, A) [rad] of the robot
    robots: Tensor  # (N, A, 1 + K, 2) [m] the robot itself, then the others
    is_there: Tensor  # (N, A, 1 + K) bool


class ObservedScene:
    """Reads the scene off observations of any form that contains the object's heading."""

    def __init__(
        self,
        obs_names: Sequence[str],
        obj: ObjectCfg,
        limit: CommandLimit | None,
        device: torch.device | str,
    ) -> None:
        """Read components ``obs_names``. ``limit`` reads the other robots. None: there are none."""
        self._limit = limit
        self._positions = columns_of(obs_names, LOOKED_AT, device)
        self._outline = Footprint(obj, device).points[0]
        points = [f"outline{k}_{axis}" for k in range(NUM_OUTLINE_POINTS) for axis in "xy"]
        forms = (["object_yaw"], ["object_sin_yaw", "object_cos_yaw"], points)
        form = next(form for form in forms if form[0] in obs_names)
        self._heading = columns_of(obs_names, form, device)

    def __call__(self, obs: Tensor) -> Seen:
        """Return the scene from observations (N, A, O)."""
        positions = obs[..., self._positions]
        goal = positions[..., :2]
        object_pos = positions[..., 2:]
        yaw = self._object_yaw(obs[..., self._heading], object_pos)
        robots_b = torch.zeros_like(object_pos).unsqueeze(-2)
        is_there = torch.ones_like(object_pos[..., :1], dtype=torch.bool)
        if self._limit is not None:
            others, others_there = self._limit.others(obs)
            if others_there is None:
                others_there = torch.ones_like(others[..., 0], dtype=torch.bool)
            robots_b = torch.cat((robots_b, others), dim=-2)
            is_there = torch.cat((is_there, others_there), dim=-1)
        robots = rotate_2d(robots_b - object_pos.unsqueeze(-2), -yaw.unsqueeze(-1))
        return Seen(rotate_2d(goal - object_pos, -yaw), -yaw, robots, is_there)

    def _object_yaw(self, numbers: Tensor, object_pos: Tensor) -> Tensor:
        """Return the object's heading (N, A) [rad] in the robot's frame, from its form's
        ``numbers``.
        """
        if numbers.shape[-1] == 1:
            return numbers.squeeze(-1)
        if numbers.shape[-1] == 2:
            sine, cosine = numbers.unbind(-1)
        else:
            seen = numbers.unflatten(-1, (-1, 2)) - object_pos.unsqueeze(-2)
            model = self._outline
            cosine = (seen * model).sum(dim=(-1, -2))
            sine = (seen[..., 1] * model[:, 0] - seen[..., 0] * model[:, 1]).sum(-1)
        return torch.atan2(sine, cosine)


class Hull:
    """The convex hull of an object's outline, as distances of its tangents from the origin."""

    NUM_TANGENTS = 64

    def __init__(self, obj: ObjectCfg, device: torch.device | str) -> None:
        angle = 2.0 * math.pi / self.NUM_TANGENTS * torch.arange(self.NUM_TANGENTS)
        self._outward = torch.stack((angle.cos(), angle.sin()), dim=-1).to(device)
        self._corners = torch.tensor(_corners(obj), dtype=torch.float32, device=device)
        self._distances = self.reach(self._outward).squeeze(-1)

    def reach(self, direction: Tensor) -> Tensor:
        """Return the object's extent (..., 1) [m] in a direction (..., 2)."""
        return (direction @ self._corners.T).amax(dim=-1, keepdim=True)

    def way(self, robot_pos: Tensor, target: Tensor, is_clear: Tensor) -> Tensor:
        """Return the vector (..., 2) [m] to ``target``, around the hull unless ``is_clear``."""
        bearing = torch.atan2(robot_pos[..., 1], robot_pos[..., 0])
        rest = wrap_to_pi(torch.atan2(target[..., 1], target[..., 0]) - bearing)
        ahead = bearing + rest.clamp(-TURN_AHEAD, TURN_AHEAD)
        ray = torch.stack((ahead.cos(), ahead.sin()), dim=-1)
        slopes = ray @ self._outward.T
        bounds = (self._distances + CLEARANCE) / slopes.clamp(min=1e-3)
        radius = torch.where(slopes > 1e-3, bounds, torch.inf).amin(dim=-1, keepdim=True)
        return torch.where(is_clear, target, radius * ray) - robot_pos


def _corners(obj: ObjectCfg) -> list[tuple[float, float]]:
    """Return the corners [m] of boxes, and 64 points on each cylinder's rim."""
    corners = []
    for geom in obj.geoms:
        if geom.type == "box":
            corners += geom.corners().tolist()
        else:
            x, y, _ = geom.pos
            angles = [2.0 * math.pi / 64 * k for k in range(64)]
            corners += [
                (x + geom.size[0] * math.cos(a), y + geom.size[0] * math.sin(a)) for a in angles
            ]
    return corners


def scripted_walk(env: MultiAgentEnv) -> Callable[[Tensor], Tensor]:
    """Return a script for all robots walking the object, side by side at one end of a side.

    A round object is pushed straight, with rams.
    """
    task: PushTask = env.task  # pyright: ignore[reportAssignmentType]
    if task.cfg.shapes is not None:
        raise ConfigError(
            f"scripted_walk plans for one object, and task.shapes={task.cfg.shapes} differs from "
            "world to world; say --object NAME, or take scripted_team"
        )
    obj = task.constants.object
    if not is_round(obj) and any(geom.type == "cylinder" for geom in obj.geoms):
        return scripted_team(env)
    return PivotingTeam(task, env.decision_period, env.device)


_SCRIPTS = TASKS["go1push_mid"].policies
_SCRIPTS.register("scripted_walk", scripted_walk)
# Viewers without a checkpoint show the last script.
_SCRIPTS["scripted_team"] = _SCRIPTS.pop("scripted_team")
