"""SceneState: named world-frame tensors of N worlds, and quantities derived from them on demand."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from mqe.config import ConfigError
from mqe.world.geometry import dot, heading_frame, length, rotate_inverse, rotation_matrix, yaw_of
from mqe.world.robots import NUM_JOINTS
from mqe.world.things import Pose, Things

# Sizes in qpos and qvel: a pose and a velocity for each trunk and object; a robot's joints follow.
POSE = 7
VELOCITY = 6
ROBOT_QPOS = POSE + NUM_JOINTS
ROBOT_QVEL = VELOCITY + NUM_JOINTS


class SceneState:
    """State of N worlds for tasks, float32, on the simulator's device.

    World frame unless the name ends in ``_b``: origin in the middle of the arena floor, x forward,
    y left, z along the floor's normal, quaternions wxyz. On a slope gravity is tilted. Bodies (B)
    are the A robots and then the object, if the scene has one. A scene without an object has no
    object quantities. P pairs of robots, K obstacles. Parts of things are named
    ``<thing>/<part>``.
    """

    # Rows of an obstacle: position, quaternion, numbers of contacts (any, and with the object)
    OBSTACLE_ROWS = 3 + 4 + 2

    def __init__(
        self,
        rows: Tensor,
        num_robots: int,
        has_object: bool,
        num_obstacles: int = 0,
        things: Things | None = None,
    ) -> None:
        """Name the ``rows`` (X, N): qpos, qvel, contact forces, goal position, obstacles, and the
        things' qpos and qvel.

        On slopes three rows follow: the direction against gravity.
        """
        self.rows = rows
        self.num_robots = num_robots
        self.has_object = has_object
        self.num_obstacles = num_obstacles
        self.things = things
        self._poses: dict[str, Pose] = {}

    @staticmethod
    def sizes(num_robots: int, has_object: bool) -> tuple[int, int, int, int]:
        """Return the row counts of qpos, qvel, contact forces and goal.

        Robots come first in each, then the object. The rows of obstacles and things follow.
        """
        num_qpos = ROBOT_QPOS * num_robots + POSE * has_object
        num_qvel = ROBOT_QVEL * num_robots + VELOCITY * has_object
        return num_qpos, num_qvel, 3 * num_robots * has_object + 3 * math.comb(num_robots, 2), 3

    @classmethod
    def zeros(
        cls,
        num_envs: int,
        num_robots: int,
        has_object: bool,
        device: torch.device | str = "cpu",
        num_obstacles: int = 0,
        things: Things | None = None,
    ) -> SceneState:
        """Return a state with everything at the origin, unrotated, and things as in their files."""
        num_rows = sum(cls.sizes(num_robots, has_object)) + cls.OBSTACLE_ROWS * num_obstacles
        if things is not None:
            num_rows += things.num_qpos + things.num_qvel
        rows = torch.zeros(num_rows, num_envs, device=device)
        state = cls(rows, num_robots, has_object, num_obstacles, things)
        state.body_quat[..., 0] = 1.0
        state.obstacle_quat[..., 0] = 1.0
        if things is not None:
            state.thing_qpos.copy_(things.qpos({}, num_envs, rows.device))
        return state

    def like(self, rows: Tensor) -> SceneState:
        """Return a state over other rows of the same scene."""
        return SceneState(rows, self.num_robots, self.has_object, self.num_obstacles, self.things)

    def with_goal(self, position: Tensor) -> SceneState:
        """Return the scene without obstacles and with its goal at ``position`` (N, 2) [m]."""
        first_goal = sum(self.sizes(self.num_robots, self.has_object)[:3])
        goal = torch.nn.functional.pad(position.t(), (0, 0, 0, 1))
        rows = torch.cat((self.rows[:first_goal], goal, self._parts[-1].t()))
        return SceneState(rows, self.num_robots, self.has_object)

    @cached_property
    def _parts(self) -> tuple[Tensor, ...]:
        """Return the columns of qpos, qvel, forces, goal, obstacle positions, quaternions and
        contacts, the things' qpos and qvel, and the direction against gravity (none on level
        ground).
        """
        k = self.num_obstacles
        sizes = [*self.sizes(self.num_robots, self.has_object), 3 * k, 4 * k, 2 * k, 0, 0]
        if self.things is not None:
            sizes[-2:] = [self.things.num_qpos, self.things.num_qvel]
        return self.rows.t().split((*sizes, len(self.rows) - sum(sizes)), dim=1)

    @property
    def _num_pushes(self) -> int:
        """Return the column count of the robots' forces on the object."""
        return 3 * self.num_robots * self.has_object

    @property
    def forces(self) -> Tensor:
        """(N, 3 A + 3 P) contact forces [N]: of each robot on the object, if there is one, then
        within each pair.
        """
        return self._parts[2]

    @property
    def goal_pos(self) -> Tensor:
        """(N, 3) [m]."""
        return self._parts[3]

    @property
    def obstacle_pos(self) -> Tensor:
        """(N, K, 3) [m] obstacle centres. Unused obstacles are below the floor."""
        return self._parts[4].unflatten(1, (self.num_obstacles, 3))

    @property
    def obstacle_quat(self) -> Tensor:
        """(N, K, 4)."""
        return self._parts[5].unflatten(1, (self.num_obstacles, 4))

    @property
    def obstacle_contacts(self) -> Tensor:
        """(N, K, 2) each obstacle's contacts in the last physics step: with anything, and with the
        object.
        """
        return self._parts[6].unflatten(1, (self.num_obstacles, 2))

    @property
    def thing_qpos(self) -> Tensor:
        """(N, Q) positions of the things' joints."""
        return self._parts[7]

    def joint(self, name: str) -> Tensor:
        """Return a thing's joint position: (N, 1) [rad, m] of a hinge or slide, (N, 4) of a ball,
        (N, 7) of a free joint.
        """
        return self.thing_qpos[:, self._things.joint(name).qpos]

    def joint_rate(self, name: str) -> Tensor:
        """Return a thing's joint velocity, (N, 1), (N, 3) or (N, 6)."""
        return self._parts[8][:, self._things.joint(name).qvel]

    def pose(self, name: str) -> Pose:
        """Return the pose of a thing's body or site."""
        if name not in self._poses:
            self._poses[name] = self._things.pose(name, self.thing_qpos)
        return self._poses[name]

    @property
    def _things(self) -> Things:
        if self.things is None:
            raise ConfigError("the scene has no things; name them in the task's things")
        return self.things

    @cached_property
    def body_pos(self) -> Tensor:
        """Positions (N, B, 3) [m]: trunks, and the object's origin."""
        return self._parts[0].unfold(1, POSE, ROBOT_QPOS)[..., :3]

    @cached_property
    def body_quat(self) -> Tensor:
        """Orientations (N, B, 4)."""
        return self._parts[0].unfold(1, POSE, ROBOT_QPOS)[..., 3:]

    @cached_property
    def body_linvel(self) -> Tensor:
        """Velocities (N, B, 3) [m/s]."""
        return self._parts[1].unfold(1, VELOCITY, ROBOT_QVEL)[..., :3]

    @cached_property
    def rotation(self) -> Tensor:
        """Matrices (N, B, 3, 3) from body to world coordinates."""
        return rotation_matrix(self.body_quat)

    @cached_property
    def yaw(self) -> Tensor:
        """Headings (N, B) [rad] in [-pi, pi]."""
        return yaw_of(self.rotation)

    @cached_property
    def frame(self) -> Tensor:
        """Heading frames (N, B, 2, 2): the horizontal unit vectors forward and left, a row each."""
        return heading_frame(self.rotation)

    @property
    def robot_pos(self) -> Tensor:
        """(N, A, 3) trunk origin [m]."""
        return self.body_pos[:, : self.num_robots]

    @property
    def robot_quat(self) -> Tensor:
        """(N, A, 4)."""
        return self.body_quat[:, : self.num_robots]

    @property
    def robot_rotation(self) -> Tensor:
        """(N, A, 3, 3)."""
        return self.rotation[:, : self.num_robots]

    @property
    def robot_yaw(self) -> Tensor:
        """(N, A) [rad] in [-pi, pi]."""
        return self.yaw[:, : self.num_robots]

    @property
    def robot_frame(self) -> Tensor:
        """(N, A, 2, 2)."""
        return self.frame[:, : self.num_robots]

    @property
    def up_b(self) -> Tensor:
        """(N, A, 3) upward normal of the floor in the body frame of each robot."""
        return self.rotation[:, : self.num_robots, 2]

    @property
    def against_gravity_b(self) -> Tensor:
        """(N, A, 3) direction against gravity in the body frame of each robot, as an IMU measures
        it.
        """
        direction = self._parts[-1]
        if direction.shape[1] == 0:
            return self.up_b
        return rotate_inverse(self.robot_rotation, direction.unsqueeze(1))

    @property
    def robot_linvel(self) -> Tensor:
        """(N, A, 3) [m/s]."""
        return self.body_linvel[:, : self.num_robots]

    @cached_property
    def robot_angvel_b(self) -> Tensor:
        """(N, A, 3) [rad/s] body frame."""
        return self._parts[1].unfold(1, VELOCITY, ROBOT_QVEL)[:, : self.num_robots, 3:]

    @cached_property
    def yaw_rate(self) -> Tensor:
        """(N, A) [rad/s] yaw rates of the robots about the floor's normal."""
        return dot(self.up_b, self.robot_angvel_b)

    @cached_property
    def joint_pos(self) -> Tensor:
        """(N, A, J) [rad], FL FR RL RR x hip thigh calf."""
        return self._parts[0].unfold(1, ROBOT_QPOS, ROBOT_QPOS)[..., POSE:]

    @cached_property
    def joint_vel(self) -> Tensor:
        """(N, A, J) [rad/s]."""
        return self._parts[1].unfold(1, ROBOT_QVEL, ROBOT_QVEL)[..., VELOCITY:]

    @property
    def object_pos(self) -> Tensor:
        """(N, 3) [m]."""
        return self.body_pos[:, self.num_robots]

    @property
    def object_quat(self) -> Tensor:
        """(N, 4)."""
        return self.body_quat[:, self.num_robots]

    @property
    def object_yaw(self) -> Tensor:
        """(N,) [rad] in [-pi, pi]."""
        return self.yaw[:, self.num_robots]

    @property
    def object_frame(self) -> Tensor:
        """(N, 2, 2)."""
        return self.frame[:, self.num_robots]

    @property
    def object_linvel(self) -> Tensor:
        """(N, 3) [m/s]."""
        return self.body_linvel[:, self.num_robots]

    @cached_property
    def to_goal(self) -> Tensor:
        """(N, 2) [m] from the object to the goal, planar."""
        return self.goal_pos[:, :2] - self.object_pos[:, :2]

    @cached_property
    def goal_distance(self) -> Tensor:
        """(N,) [m] from the object to the goal, planar."""
        return length(self.to_goal)

    @cached_property
    def goal_direction(self) -> Tensor:
        """(N, 2) unit vector from the object to the goal, zero if they coincide."""
        return self.to_goal / self.goal_distance.clamp(min=1e-12).unsqueeze(-1)

    @cached_property
    def contact_force(self) -> Tensor:
        """(N, A, 3) [N] net contact force of each robot on the object."""
        return self.forces[:, : self._num_pushes].unflatten(1, (self.num_robots, 3))

    @cached_property
    def useful_push(self) -> Tensor:
        """(N, A) [N] each robot's push on the object towards the goal, negative away from it."""
        return dot(self.contact_force[..., :2], self.goal_direction.unsqueeze(1))

    @cached_property
    def robot_contact_force(self) -> Tensor:
        """(N, P, 3) [N] net contact force that the first robot of each pair exerts on the second.

        Pairs come in the order of ``itertools.combinations``.
        """
        return self.forces[:, self._num_pushes :].unflatten(1, (-1, 3))


def over(mask: Tensor, values: Tensor) -> Tensor:
    """Return ``mask`` (N, ...) with as many dimensions as ``values`` (N, ..., K)."""
    return mask.view(*mask.shape, *[1] * (values.dim() - mask.dim()))


def overwrite(old: Tensor, mask: Tensor, new: Tensor) -> None:
    """Overwrite ``old`` (N, ..., K) with ``new`` in ``mask`` (N, ...)."""
    torch.where(over(mask, old), new.to(old.dtype), old, out=old)
