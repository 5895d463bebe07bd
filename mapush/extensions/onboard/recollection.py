"""The observed memory of the onboard senses, and the scene as the robots know it.

Each robot remembers poses in its odometry frame, which equals the world frame at an episode's
start. W worlds, A robots, E = A entities per robot (the object, then the others), P outline points,
C columns.
"""

from functools import cached_property

import torch
from torch import Tensor

from mqe.tasks.push.features import SceneFeatures
from mqe.tasks.push.roster import Roster
from mqe.world.geometry import TWO_PI, axes_along, in_frame, rotate_2d, turned
from mqe.world.objects import NUM_OUTLINE_POINTS

_DRIFT = 3  # x, y [m] and heading [rad] of an odometry frame in the world
_ENTITY = 5  # x, y [m], unit vector of the heading, freshness
_MOTION = 2  # x, y [m/s] of the object


class Recollection:
    """Named views of the observed memory (W, C)."""

    def __init__(self, values: Tensor, num_agents: int) -> None:
        """Name the columns of ``values``."""
        drift, entities, outline, motion = values.split(self._sizes(num_agents), dim=1)
        self.drift = drift.unflatten(1, (num_agents, _DRIFT))  # (W, A, 3)
        # (W, A, E, 5) from the last detection
        self.entities = entities.unflatten(1, (num_agents, num_agents, _ENTITY))
        # (W, A, P) 1 for a point of the object seen since the robot has known the object
        self.outline = outline.unflatten(1, (num_agents, NUM_OUTLINE_POINTS))
        # (W, A, 2) [m/s] of the object between its detections, in the odometry frame
        self.motion = motion.unflatten(1, (num_agents, _MOTION))

    @staticmethod
    def _sizes(num_agents: int) -> tuple[int, int, int, int]:
        sizes = (_DRIFT, _ENTITY * num_agents, NUM_OUTLINE_POINTS, _MOTION)
        drift, entities, outline, motion = (size * num_agents for size in sizes)
        return drift, entities, outline, motion

    @classmethod
    def num_columns(cls, num_agents: int) -> int:
        """Return C."""
        return sum(cls._sizes(num_agents))

    @property
    def freshness(self) -> Tensor:
        """(W, A, E) 1 for a body in sight, falling to 0 for a forgotten or unseen body."""
        return self.entities[..., 4]


class KnownFeatures(SceneFeatures):
    """The scene as each robot knows it. Components of unknown bodies are 0."""

    def __init__(self, scene: SceneFeatures, recollection: Recollection) -> None:
        """Replace the true ``scene`` by ``recollection``."""
        super().__init__(scene.state, scene.constants)
        self._scene = scene
        self._recollection = recollection

    @cached_property
    def is_known(self) -> Tensor:
        """(W, A, E) bool: the robot remembers the entity."""
        return self._recollection.freshness > 0.0

    @cached_property
    def ages(self) -> Tensor:
        """(W, A, E) time since the last sight over the memory time, 1 for unknown entities."""
        return 1.0 - self._recollection.freshness

    @cached_property
    def _origin(self) -> Tensor:
        """(W, A, 1, 2) [m] each robot's position in its odometry frame."""
        return (self.state.robot_pos[..., :2] + self._recollection.drift[..., :2]).unsqueeze(2)

    @cached_property
    def _frame(self) -> Tensor:
        """(W, A, 1, 2, 2) each robot's heading frame in its odometry frame."""
        ahead = rotate_2d(self.state.robot_frame[..., 0, :], self._recollection.drift[..., 2])
        return axes_along(ahead).unsqueeze(2)

    @cached_property
    def places_b(self) -> Tensor:
        """(W, A, 1 + E, 2) [m] goal, object and others in each robot's heading frame."""
        goal = in_frame(self.state.goal_pos[:, None, None, :2] - self._origin, self._frame)
        entities = in_frame(self._recollection.entities[..., :2] - self._origin, self._frame)
        return torch.cat((goal, entities * self.is_known.unsqueeze(-1)), dim=2)

    @cached_property
    def bodies_b(self) -> Tensor:
        """(W, A, E, 4) object and others in each robot's heading frame: x, y [m], the heading's
        sine and cosine.
        """
        heading = in_frame(self._recollection.entities[..., 2:4], self._frame).flip(-1)
        return torch.cat((self.places_b[:, :, 1:], heading * self.is_known.unsqueeze(-1)), dim=-1)

    @cached_property
    def bodies_yaw_b(self) -> Tensor:
        """(W, A, E, 3) object and others in each robot's heading frame: x, y [m], heading [rad] in
        [0, 2 pi).
        """
        heading = torch.atan2(self.bodies_b[..., 2], self.bodies_b[..., 3])
        yaw = torch.remainder(heading, TWO_PI).unsqueeze(-1)
        return torch.cat((self.places_b[:, :, 1:], yaw), dim=-1)

    @cached_property
    def object_velocity_b(self) -> Tensor:
        """(W, A, 2) [m/s] of the object by its detections, in each robot's heading frame."""
        velocity = in_frame(self._recollection.motion.unsqueeze(2), self._frame).squeeze(2)
        return velocity * self.is_known[:, :, :1]

    @cached_property
    def outline_b(self) -> Tensor:
        """(W, A, P, 3) outline points seen so far, in each robot's heading frame: presence, x, y
        [m].
        """
        pose = self._recollection.entities[:, :, :1]
        origin = pose[..., :2]
        ahead = pose[..., 2:4]
        points = turned(self.constants.footprint.points_of(len(origin)).unsqueeze(1), ahead)
        points_b = in_frame(origin + points - self._origin, self._frame)
        is_there = (self._recollection.outline * self.is_known[:, :, :1]).unsqueeze(-1)
        return torch.cat((is_there, points_b * is_there), dim=-1)

    @property
    def goal_heading(self) -> Tensor | None:
        """(W,) [rad] the object's heading at the goal."""
        return self._scene.goal_heading

    @cached_property
    def heading_error_axes_b(self) -> Tensor:
        """(W, A, 2) sine and cosine of the heading error times the number of headings at which the
        object looks alike.
        """
        goal = self.goal_heading
        ahead = self._recollection.entities[:, :, 0, 2:4]
        angle = torch.zeros_like(ahead[..., 0])
        if goal is not None:
            num_equal = self.constants.footprint.equal_headings_of(len(goal)).unsqueeze(-1)
            angle = (goal.unsqueeze(-1) - torch.atan2(ahead[..., 1], ahead[..., 0])) * num_equal
        axes = torch.stack((angle.sin(), angle.cos()), dim=-1)
        return axes * self.is_known[:, :, :1]

    @cached_property
    def roster(self) -> Roster:
        """Participating robots, and each robot's known others."""
        roster = self._scene.roster
        num_agents = self.constants.num_agents
        order = self.constants.order.expand(len(self.is_known), -1, -1)
        is_known = torch.zeros_like(roster.observes)
        is_known = is_known.scatter(2, order, self.is_known.float())
        observes = (roster.observes * is_known).flatten(1)
        return Roster(torch.cat((roster.takes_part, observes), dim=1), num_agents)
