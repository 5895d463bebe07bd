"""Where a push episode starts: object in the middle of the arena, robots on a ring around it, goal further out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mqe.geometry import TWO_PI, quat_from_euler, rotate_2d
from mqe.objects import FLOOR_SLAB, Footprint
from mqe.robots.go1 import DEFAULT_JOINT_POS
from mqe.streams import Streams
from mqe.task import Layout

SPAWNS = ("independent", "separated")
SPAWN_HEIGHT = 0.45 - FLOOR_SLAB  # [m] trunk origin above the floor
TILT = (-0.01, 0.01)  # [rad] robots' roll and pitch
TURN = (-0.01, TWO_PI)  # [rad] the reference's range of every angle about the vertical
VELOCITY = (-0.1, 0.1)  # [m/s] linear, world frame, and [rad/s] angular, body frame: each of the trunk's six
JOINT_SCATTER = (0.7, 1.3)  # times the nominal angle, every joint for itself

ROBOT_CLEARANCE = 0.8  # [m] between the trunks of separated robots: nose to tail they reach 0.29 m and up to 0.49 m
OBJECT_CLEARANCE = 0.5  # [m] from a separated robot's trunk to the object: a stretched hind leg's reach


class PushLayouts:
    """Draws episode starts: all of a world's numbers from one stream, each scaled to its own range.

    ``independent`` spawn is the reference's distribution: robots know nothing of one another, and 6 to 7 % of all
    births are collisions. ``separated`` keeps every two robots, and every robot and the object, too far apart to touch.
    """

    purpose = 10  # the random stream it draws from

    def __init__(
        self,
        footprint: Footprint,
        num_agents: int,
        spawn: str,
        goal_distance: tuple[float, float],
        device: torch.device,
    ) -> None:
        obj = footprint.cfg
        self.footprint = footprint
        self.is_separated = spawn == "separated"
        self.gap = 2.0 * math.asin(0.5 * ROBOT_CLEARANCE / obj.spawn_ring[0])  # [rad] seen from the ring's middle
        self.spawn_height = obj.spawn_height
        self.num_agents = num_agents
        tilt = (-obj.spawn_tilt, obj.spawn_tilt)
        ring_angle = (0.0, 1.0) if self.is_separated else TURN
        # Roll, pitch and yaw of the object; distance and bearing of the goal.
        world = [tilt, tilt, TURN, goal_distance, (0.0, TWO_PI)]
        # Radius and angle on the ring; roll, pitch and yaw; velocities; joints.
        robot = [obj.spawn_ring, ring_angle, TILT, TILT, TURN] + [VELOCITY] * 6
        robot += [(JOINT_SCATTER[0] * q, JOINT_SCATTER[1] * q) for q in DEFAULT_JOINT_POS]
        self.sizes = (len(world), len(robot))
        ranges = torch.tensor(world + robot * num_agents, device=device)
        self.low, self.span = ranges[:, 0], ranges[:, 1] - ranges[:, 0]

    def draw(self, streams: Streams, episode: Tensor) -> Layout:
        """Give the start of episode number ``episode`` (N,) in every world."""
        drawn = self.low + self.span * streams.uniform(self.purpose, episode, (len(self.low),))
        world, robot = drawn[:, : self.sizes[0]], drawn[:, self.sizes[0] :].unflatten(1, (self.num_agents, -1))
        object_roll, object_pitch, object_yaw, goal_distance, goal_bearing = world.unbind(dim=1)
        radius, angle = robot[..., 0], robot[..., 1]
        if self.is_separated:
            angle = spread_angles(angle, self.gap)
            local = rotate_2d(on_circle(radius, angle), -object_yaw.unsqueeze(1))
            # Along its ray from the object's origin a robot leaves the outline at 1 / 1.2 of its speed or more.
            radius = radius + 1.2 * (OBJECT_CLEARANCE - self.footprint.distance(local)).clamp(min=0.0)
        zero = torch.zeros_like(object_yaw)
        height = torch.full_like(radius, SPAWN_HEIGHT).unsqueeze(-1)
        return Layout(
            robot_pos=torch.cat((on_circle(radius, angle), height), dim=-1),
            robot_quat=quat_from_euler(robot[..., 2], robot[..., 3], robot[..., 4]),
            robot_vel=robot[..., 5:11],
            joint_pos=robot[..., 11:],
            object_pos=torch.stack((zero, zero, zero + self.spawn_height), dim=-1),
            object_quat=quat_from_euler(object_roll, object_pitch, object_yaw),
            goal_pos=torch.cat((on_circle(goal_distance, goal_bearing), zero.unsqueeze(-1)), dim=-1),
        )


def on_circle(radius: Tensor, angle: Tensor) -> Tensor:
    """Give the points (..., 2) at polar coordinates radius and angle (...)."""
    return torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)


def spread_angles(draw: Tensor, gap: float) -> Tensor:
    """Give angles (N, A) [rad] on a circle, uniform among those with at least ``gap`` [rad] between any two.

    Needs ``draw`` (N, A), uniform in [0, 1), and A * gap <= 2 pi. The first angle turns the whole circle. The others
    share what is left of it once every robot has its gap, and the gaps are then put back in by rank: each draw gives
    a valid answer, where rejection may give none.
    """
    first, rest = draw[:, :1], draw[:, 1:]
    ahead = rest.unsqueeze(2) - rest.unsqueeze(1)  # (N, i, j): how far i is beyond j
    index = torch.arange(rest.shape[1], device=draw.device)
    is_beyond = (ahead > 0.0) | ((ahead == 0.0) & (index.unsqueeze(1) > index))
    rank = is_beyond.sum(dim=2)
    free = TWO_PI - draw.shape[1] * gap
    return TWO_PI * first + torch.cat((torch.zeros_like(first), (1 + rank) * gap + free * rest), dim=1)
