"""Where a push episode starts: object in the middle of the arena, robots on a ring around it, goal further out."""

from __future__ import annotations

import math
from functools import cache
from itertools import chain

import torch
from torch import Tensor

from mqe.config import ConfigError
from mqe.geometry import TWO_PI, on_circle, quat_from_rpy
from mqe.objects import FLOOR_SLAB, Footprint
from mqe.robots.go1 import DEFAULT_JOINT_POS
from mqe.streams import Ranges, Streams
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
        self.gap = self._gap(obj.spawn_ring[0], num_agents) if self.is_separated else 0.0
        self.num_agents = num_agents
        tilt = (-obj.spawn_tilt, obj.spawn_tilt)
        # Roll, pitch and yaw of the object; distance and bearing of the goal.
        world = [tilt, tilt, TURN, goal_distance, (0.0, TWO_PI)]
        robots = [self._robot_ranges(i, obj.spawn_ring) for i in range(num_agents)]
        self.sizes = (len(world), len(robots[0]))
        self.ranges = Ranges([*world, *chain(*robots)], device)
        self.object_pos = torch.tensor([0.0, 0.0, obj.spawn_height], device=device)
        self.goal_z = torch.zeros(1, device=device)
        self.robot_z = torch.full((num_agents, 1), SPAWN_HEIGHT, device=device)

    @staticmethod
    def _gap(nearest: float, num_agents: int) -> float:
        """Give what two robots are apart at least [rad], seen from the middle of a ring that begins at ``nearest``."""
        least = 0.5 * ROBOT_CLEARANCE / math.sin(math.pi / max(num_agents, 2))
        if nearest < least:
            raise ConfigError(
                f"task.object: its spawn_ring begins at {nearest} m, where {num_agents} robots cannot be born "
                f"{ROBOT_CLEARANCE} m apart; begin it at {least:.2f} m, take fewer robots, or task.spawn=independent"
            )
        return 2.0 * math.asin(0.5 * ROBOT_CLEARANCE / nearest)

    def _robot_ranges(self, robot: int, ring: tuple[float, float]) -> list[tuple[float, float]]:
        """Radius and angle on the ring; roll, pitch and yaw; velocities; joints."""
        turn = TURN
        if self.is_separated:
            turn = (0.0, TWO_PI if robot == 0 else TWO_PI - self.num_agents * self.gap)
        joints = [(JOINT_SCATTER[0] * q, JOINT_SCATTER[1] * q) for q in DEFAULT_JOINT_POS]
        return [ring, turn, TILT, TILT, TURN] + [VELOCITY] * 6 + joints

    def draw(self, streams: Streams, episode: Tensor) -> Layout:
        """Give the start of episode number ``episode`` (N,) in every world."""
        drawn = self.ranges.draw(streams, self.purpose, episode)
        n = len(drawn)
        world, robot = drawn[:, : self.sizes[0]], drawn[:, self.sizes[0] :].unflatten(1, (self.num_agents, -1))
        radius, angle = robot[..., 0], robot[..., 1]
        if self.is_separated:
            angle = spread_angles(angle, self.gap)
            local = on_circle(radius, angle - world[:, 2:3])  # in the object frame
            # Along its ray from the object's origin a robot leaves the outline at 1 / 1.2 of its speed or more.
            radius = radius + 1.2 * (OBJECT_CLEARANCE - self.footprint.distance(local)).clamp(min=0.0)
        quat = quat_from_rpy(torch.cat((robot[..., 2:5], world[:, None, :3]), dim=1))
        return Layout(
            robot_pos=torch.cat((on_circle(radius, angle), self.robot_z.expand(n, -1, -1)), dim=-1),
            robot_quat=quat[:, :-1],
            robot_vel=robot[..., 5:11],
            joint_pos=robot[..., 11:],
            object_pos=self.object_pos.expand(n, -1),
            object_quat=quat[:, -1],
            goal_pos=torch.cat((on_circle(world[:, 3], world[:, 4]), self.goal_z.expand(n, -1)), dim=-1),
        )


def spread_angles(draw: Tensor, gap: float) -> Tensor:
    """Give angles (N, A) [rad] on a circle, uniform among those with at least ``gap`` [rad] between any two.

    Needs ``draw`` (N, A): the first uniform in [0, 2 pi), the others in what is left of the circle once every robot has
    its gap, [0, 2 pi - A gap). The first turns the whole circle; the gaps are then put back in by rank, of equals by
    number: each draw gives a valid answer, where rejection may give none.
    """
    least, turns = _spread_table(draw.shape[1], draw.device)
    rank = (draw.unsqueeze(2) - draw.unsqueeze(1) > least).sum(dim=2)
    return torch.addcmul(torch.add(draw, rank, alpha=gap), draw[:, :1], turns)


@cache
def _spread_table(num_agents: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Give what a draw must exceed another by to come after it, (A, A), and who turns with the first, (A,)."""
    index = torch.arange(num_agents, device=device)
    least = torch.where(index.unsqueeze(1) > index, -1e-12, 0.0)  # of equals the later comes after
    least[:, 0], least[0, :] = -torch.inf, torch.inf  # the first comes before all
    return least, (index > 0).float()
