"""Initial layouts of push episodes: object in the middle, robots on a ring around it, goal further
out.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import chain, combinations

import torch
from torch import Tensor

from mqe.config import ConfigError
from mqe.tasks.drop import JOINT_SCATTER, TILT, VELOCITY, spawn_height
from mqe.world.geometry import TWO_PI, on_circle, quat_from_rpy
from mqe.world.layout import Layout
from mqe.world.objects import Footprint
from mqe.world.robots import Robots
from mqe.world.robots.robot import LEGS
from mqe.world.streams import Streams, UniformRanges

SPAWNS = ("independent", "separated")
TURN = (-0.01, TWO_PI)  # [rad] the reference's range of every angle about the vertical

# [m] between the trunks of separated robots: nose to tail they reach 0.29 m and up to 0.49 m.
ROBOT_CLEARANCE = 0.8
# [m] from a separated robot's trunk to the object: the reach of a stretched hind leg.
OBJECT_CLEARANCE = 0.5

# Close and tangled starts: two robots side by side.
CLOSE_MARGIN = 0.05  # [m] least distance of their trunks beyond a collision
CLOSE_DISTANCE = 0.5  # [m] largest distance of their trunks in a close start
TANGLED_DISTANCE = 0.4  # [m] largest distance of their trunks in a tangled start
# [rad] between abreast and the line through both: hips stand beside the other's trunk.
SLANT = (0.38, 0.62)
TRUNK_REACH = 0.25  # [m] from a trunk's middle to its ends, nearly
TRUNK_SIDE = 0.14  # [m] from a trunk's middle to the sides of its hips, nearly
# [rad] hip, thigh, calf: legs reach under the other trunk.
TANGLED_JOINTS = ((-0.45, 0.45), (0.2, 1.6), (-2.2, -1.0))


class PushLayouts:
    """Draws initial layouts: all random numbers of a world from one stream, each scaled to its own
    range.

    ``independent`` spawn is the reference's distribution: each robot is placed without regard to
    the others, and 6 to 7 % of all spawns are collisions. ``separated`` keeps every two robots, and
    every robot and the object, too far apart to touch. In fractions ``close_share`` and
    ``tangled_share`` of the separated layouts, two robots then are brought together.
    """

    purpose = 10  # the random stream it draws from

    def __init__(
        self,
        footprint: Footprint,
        robots: Robots,
        spawn: str,
        goal_distance: tuple[float, float],
        close_share: float = 0.0,
        tangled_share: float = 0.0,
    ) -> None:
        obj = footprint.cfg
        num_agents = len(robots)
        device = robots.device
        self.footprint = footprint
        self._robots = robots
        self.is_separated = spawn == "separated"
        self.gap = self._gap(obj.spawn_ring[0], num_agents) if self.is_separated else 0.0
        self.num_agents = num_agents
        tilt = (-obj.spawn_tilt, obj.spawn_tilt)
        # Roll, pitch and yaw of the object; distance and bearing of the goal.
        world = [tilt, tilt, TURN, goal_distance, (0.0, TWO_PI)]
        robot_ranges = [self._robot_ranges(i, obj.spawn_ring) for i in range(num_agents)]
        self.sizes = (len(world), len(robot_ranges[0]) * num_agents)
        ranges = [*world, *chain(*robot_ranges)]
        self.encounters: Encounters | None = None
        if close_share + tangled_share > 0.0:
            self.encounters = Encounters(obj.collision_distance, robots, close_share, tangled_share)
            # Drawn last, so that the other numbers do not depend on encounters.
            ranges += self.encounters.ranges
        self.ranges = UniformRanges(ranges, device)
        self.object_pos = torch.tensor([0.0, 0.0, obj.spawn_height], device=device)
        self.goal_z = torch.zeros(1, device=device)
        heights = [[spawn_height(robot)] for robot in robots.cfgs]
        self.robot_z = torch.tensor(heights, device=device)

    @staticmethod
    def _gap(nearest: float, num_agents: int) -> float:
        """Return the least angle between two robots [rad], seen from the centre of a ring with
        least radius ``nearest`` [m].
        """
        least = 0.5 * ROBOT_CLEARANCE / math.sin(math.pi / max(num_agents, 2))
        if nearest < least:
            raise ConfigError(
                f"task.object: spawn_ring begins at {nearest} m, where {num_agents} robots "
                f"cannot be spawned {ROBOT_CLEARANCE} m apart; begin spawn_ring at {least:.2f} "
                "m, take fewer robots, or task.spawn=independent"
            )
        return 2.0 * math.asin(0.5 * ROBOT_CLEARANCE / nearest)

    def _robot_ranges(self, robot: int, ring: tuple[float, float]) -> list[tuple[float, float]]:
        """Radius and angle on the ring, roll, pitch and yaw, velocities, joints."""
        turn = TURN
        if self.is_separated:
            turn = (0.0, TWO_PI if robot == 0 else TWO_PI - self.num_agents * self.gap)
        joints = [
            (JOINT_SCATTER[0] * q, JOINT_SCATTER[1] * q) for q in self._robots.cfgs[robot].joint_pos
        ]
        return [ring, turn, TILT, TILT, TURN] + [VELOCITY] * 6 + joints

    def draw(self, streams: Streams, episode: Tensor) -> Layout:
        """Return every world's initial layout for episode number ``episode`` (N,)."""
        drawn = self.ranges.draw(streams, self.purpose, episode)
        n = len(drawn)
        world, robot, encounter = drawn.tensor_split((self.sizes[0], sum(self.sizes)), dim=1)
        robot = robot.unflatten(1, (self.num_agents, -1))
        radius = robot[..., 0]
        angle = robot[..., 1]
        rpy = robot[..., 2:5]
        joint_pos = robot[..., 11:]
        if self.is_separated:
            angle = spread_angles(angle, self.gap)
            radius = self._cleared(radius, angle, world[:, 2:3])
            if self.encounters is not None:
                radius, angle, rpy, joint_pos = self.encounters.arrange(
                    encounter, radius, angle, rpy, joint_pos
                )
                radius = self._cleared(radius, angle, world[:, 2:3])
        quat = quat_from_rpy(torch.cat((rpy, world[:, None, :3]), dim=1))
        return Layout(
            robot_pos=torch.cat((on_circle(radius, angle), self.robot_z.expand(n, -1, -1)), dim=-1),
            robot_quat=quat[:, :-1],
            robot_vel=robot[..., 5:11],
            joint_pos=joint_pos,
            object_pos=self.object_pos.expand(n, -1),
            object_quat=quat[:, -1],
            goal_pos=torch.cat(
                (on_circle(world[:, 3], world[:, 4]), self.goal_z.expand(n, -1)), dim=-1
            ),
        )

    def _cleared(self, radius: Tensor, angle: Tensor, object_yaw: Tensor) -> Tensor:
        """Return the robots' clear radii (N, A) [m] round the object with yaw (N, 1) [rad]."""
        local = on_circle(radius, angle - object_yaw)  # in the object frame
        # Along its ray from the object's origin a robot leaves the outline at 1 / 1.2 of its speed
        # or more.
        return radius + 1.2 * (OBJECT_CLEARANCE - self.footprint.distance(local)).clamp(min=0.0)


class Encounters:
    """Brings two robots of some worlds together: legs side by side, or, tangled, under one
    another's trunk.

    The second robot of a pair goes to the first robot's side and a little further out, so the hips
    are not beside hips. The nearer the robots are, the smaller is the largest angle between their
    headings.
    """

    def __init__(
        self, collision_distance: float, robots: Robots, close_share: float, tangled_share: float
    ) -> None:
        """Arrange ``robots`` in fractions ``close_share`` and ``tangled_share`` of all layouts.

        Trunks nearer than ``collision_distance`` [m] are a collision.
        """
        num_agents = len(robots)
        device = robots.device
        if num_agents < 2:
            raise ConfigError(
                "task.close_share, task.tangled_share: need two robots; say 0 for a team of one"
            )
        pairs = torch.tensor(list(combinations(range(num_agents), 2)), device=device)
        index = torch.arange(num_agents, device=device)
        # Kind; pair; side and distance; slant.
        self.ranges = [(0.0, 1.0), (0.0, float(len(pairs))), (-1.0, 1.0), SLANT]
        self._close_share = close_share
        self._tangled_share = tangled_share
        # Distances are for legs up to the Go1's size; larger robots are wider.
        self._size = max(1.0, *(cfg.size for cfg in robots.cfgs))
        self._nearest = collision_distance + CLOSE_MARGIN
        self._first = pairs[:, :1]  # (P, 1)
        self._is_second = pairs[:, 1:] == index  # (P, A)
        self._is_either = self._is_second | (self._first == index)
        low, high = torch.tensor(TANGLED_JOINTS * len(LEGS), device=device).unbind(dim=1)
        nominal = robots.joint_pos
        scale = (high - low) / (nominal * (JOINT_SCATTER[1] - JOINT_SCATTER[0]))
        # Joints without a nominal angle, as wheels are, stay where they are.
        stays = nominal == 0.0
        self._joint_scale = scale.masked_fill(stays, 1.0)
        offset = 0.5 * (low + high) - self._joint_scale * nominal
        self._joint_offset = offset.masked_fill(stays, 0.0)

    def arrange(
        self, drawn: Tensor, radius: Tensor, angle: Tensor, rpy: Tensor, joint_pos: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return radius and angle (N, A), rpy (N, A, 3) and joints (N, A, J), with encounters mixed
        in.

        ``drawn`` (N, 4) has one number for each of ``ranges``.
        """
        kind = drawn[:, :1]
        side = drawn[:, 2:3]
        slant = drawn[:, 3:]
        pair = drawn[:, 1].to(torch.int64)
        is_tangled = kind < self._tangled_share
        is_arranged = kind < self._tangled_share + self._close_share
        first = self._first[pair]
        is_second = self._is_second[pair] & is_arranged
        is_either = (self._is_either[pair] & is_arranged).unsqueeze(-1)

        room = torch.where(
            is_tangled, TANGLED_DISTANCE - self._nearest, CLOSE_DISTANCE - self._nearest
        )
        spacing = self._nearest + room * side.abs()  # of robots of the Go1's size
        distance = self._size * spacing
        own_radius = radius.gather(1, first)
        own_angle = angle.gather(1, first)
        if angle.shape[1] > 2:  # away from the first robot's nearest neighbour but the second
            offset = torch.remainder(own_angle - angle + math.pi, TWO_PI) - math.pi
            nearest = (
                offset.abs().masked_fill(self._is_either[pair], TWO_PI).argmin(dim=1, keepdim=True)
            )
            side = offset.gather(1, nearest)
        half_turn = torch.asin(0.5 * distance * torch.cos(slant) / own_radius).copysign(side)
        between = own_angle + half_turn  # the bearing of the point between the two
        radius = torch.where(is_second, own_radius + distance * torch.sin(slant), radius)
        angle = torch.where(is_second, between + half_turn, angle)

        # Side by side both look outwards or inwards, give or take ``tilt``: seen along the ring,
        # half a trunk and its hips take half of the distance each.
        tilt = torch.asin(((0.5 * spacing - TRUNK_SIDE) / TRUNK_REACH).clamp(0.0, 1.0))
        yaw = rpy[..., 2]
        half = torch.remainder(yaw, math.pi)
        side_by_side = between + (yaw - half) + (half / (0.5 * math.pi) - 1.0) * tilt
        rpy = torch.cat(
            (rpy[..., :2], torch.where(is_either, side_by_side.unsqueeze(-1), rpy[..., 2:])), dim=-1
        )
        tangled = torch.addcmul(self._joint_offset, self._joint_scale, joint_pos)
        return (
            radius,
            angle,
            rpy,
            torch.where(is_either & is_tangled.unsqueeze(-1), tangled, joint_pos),
        )


def spread_angles(draw: Tensor, gap: float) -> Tensor:
    """Return angles (N, A) [rad] on a circle, uniform among those at least ``gap`` [rad] apart.

    Needs ``draw`` (N, A): the first uniform in [0, 2 pi), the others in [0, 2 pi - A gap), the
    circle less the gaps. The first turns the whole circle. The gaps are then put back in by rank,
    equal ones by number: each draw gives a valid answer, unlike rejection.
    """
    least, turns = _spread_table(draw.shape[1], draw.device)
    rank = (draw.unsqueeze(2) - draw.unsqueeze(1) > least).sum(dim=2)
    return torch.addcmul(torch.add(draw, rank, alpha=gap), draw[:, :1], turns)


@cache
def _spread_table(num_agents: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return each draw's required excess over another to come after it, (A, A), and the rotating
    draws (A,).
    """
    index = torch.arange(num_agents, device=device)
    least = torch.where(index.unsqueeze(1) > index, -1e-12, 0.0)  # of equals the later comes after
    # the first comes before all
    least[:, 0] = -torch.inf
    least[0, :] = torch.inf
    return least, (index > 0).float()
