"""Features of the velocity task: quantities for its terms, each computed on first use.

N worlds with one robot each, W observed worlds (N or 2 N).
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from mapush.extensions.gait.gait_mirror import mirrored_action
from mapush.extensions.gait.leg_motion import WalkingRobots
from mapush.extensions.gait.settings import VelocityCfg
from mqe.controllers.trot import SWING_HEIGHT, GaitMemory, Trot, is_moving, planar_velocity
from mqe.tasks.terms import Terminated
from mqe.world.collapse import CollapseTimers
from mqe.world.geometry import dot, length, rotate_inverse
from mqe.world.robots import NUM_JOINTS, Robots
from mqe.world.scene import GRAVITY, STEP_DT
from mqe.world.state import SceneState

MEAN_VELOCITY_TIME = 0.4  # [s] a Go1's trot cycle: what "the mean velocity" averages over
# Errors of speed [m/s] and turning [rad/s] that cost 63 % of their terms. Squared in the term of
# the moment, which may vary within a cycle; not in that of the mean, so that small errors are worth
# mending.
TOLERANCE = 0.39
MEAN_TOLERANCE = 0.1
# [m/s] speed at which a load resists with 76 % of its force: as fast as it can rise for a trunk of
# 13 kg that feels a load of 100 N anew every 20 ms.
LOAD_SPEED = 0.15
_GO1_STIFFNESS = 19.0  # [N m/rad]


class VelocityConstants:
    """Constants for a velocity task's features."""

    def __init__(self, cfg: VelocityCfg, robots: Robots) -> None:
        """Compute the constants for the settings ``task`` and a world's one robot."""
        device = robots.device
        robots = WalkingRobots(robots.cfgs, device)
        self.cfg = cfg
        self.robots = robots
        self.trot = Trot(robots)
        self.mirror = mirrored_action(device)
        self.nominal_feet = robots.feet(robots.joint_pos)[:, 0]  # (4,) [m] forward
        cfg_of_robot = robots.cfgs[0]
        self.square_scales = _square_scales(robots.size, cfg_of_robot.stiffness)
        self.scales = torch.tensor(list(self.square_scales.values()), device=device)
        self.step_of_mean = STEP_DT / (MEAN_VELOCITY_TIME * cfg_of_robot.time_scale)
        # [m/N] how far behind their hips feet carry a trunk that is pushed back by a force.
        self.lean = cfg_of_robot.walking_height / (cfg_of_robot.mass * GRAVITY)
        self.zeros = torch.zeros(1, 1, NUM_JOINTS, device=device)
        self.one = torch.ones(1, 1, device=device)


def _square_scales(size: float, stiffness: float) -> dict[str, float]:
    """Return factors for ``StepFeatures.square_sums``, by name. All are 1 for a Go1.

    ``size`` is relative to the Go1, ``stiffness`` a motor's [N m/rad]. Lengths scale with the legs,
    times with the square root of length over gravity, torques with the stiffness.
    """
    area = size**2
    return {
        "height": 1.0 / area,
        "tilt": 1.0,
        "bounce": 1.0 / size,
        "sway": size,
        "slip": 1.0 / size,
        "hips": 1.0,
        "placement": 1.0 / area,
        "stance": 1.0,
        "action_rate": 1.0,
        "jerk": 1.0,
        "torque": (_GO1_STIFFNESS / stiffness) ** 2,
    }


class VelocityMemory(NamedTuple):
    """Observed values besides the scene, as views into one tensor."""

    SIZE = GaitMemory.SIZE + 9
    LOADED_SIZE = SIZE + 3

    passing: Tensor  # (W, 28) what ends with an episode: the gait and the mean velocity
    resisting: Tensor  # (W, 3) the load, which ends with an episode, too; (W, 0) without loads
    gait: GaitMemory
    mean_velocity: Tensor  # (W, 1, 3) vx, vy [m/s], yaw rate [rad/s]
    command: Tensor  # (W, 1, 3)
    force: Tensor  # (W, 1, 3) [N] that leans on the trunk
    load: Tensor  # (W, 1, 1) [N] that resists the way ahead
    drag: Tensor  # (W, 1, 2) horizontal force at the last control step, as a share of the load

    @classmethod
    def of(cls, values: Tensor) -> VelocityMemory:
        """Name the parts of ``values``, (W, 34) without loads and (W, 37) with them."""
        gait, mean_velocity, command, force, resisting = values.unsqueeze(1).split(
            (GaitMemory.SIZE, 3, 3, 3, values.shape[1] - cls.SIZE), dim=-1
        )
        passing = values[:, : GaitMemory.SIZE + 3]
        return cls(
            passing,
            resisting[:, 0],
            GaitMemory(gait),
            mean_velocity,
            command,
            force,
            load=resisting[..., :1],
            drag=resisting[..., 1:],
        )

    @property
    def has_load(self) -> bool:
        """Whether loads resist the robots."""
        return self.resisting.shape[1] > 0


class Actuation(NamedTuple):
    """The last action as joint targets, and its differences from earlier actions."""

    targets: Tensor  # (N, 1, J) [rad]
    change: Tensor  # (N, 1, J) first difference of actions
    jerk: Tensor  # (N, 1, J) second difference of actions


class Tracking(NamedTuple):
    """Rewards (N, 1) for following the command: 1 without an error, 0 far off."""

    velocity: Tensor
    yaw_rate: Tensor
    mean_velocity: Tensor
    mean_yaw_rate: Tensor


class SceneFeatures:
    """Quantities at one moment."""

    def __init__(
        self, state: SceneState, memory: VelocityMemory, constants: VelocityConstants
    ) -> None:
        """Describe ``state`` and ``memory``."""
        self.state = state
        self.memory = memory
        self.constants = constants
        self.robots = constants.robots

    @cached_property
    def is_moving(self) -> Tensor:
        """(N, 1) bool: the command asks for walking rather than standing."""
        return is_moving(self.memory.command)

    @cached_property
    def gait_obs(self) -> Tensor:
        """(N, 1, 59) a gait policy's observation."""
        memory = self.memory
        return self.constants.trot.observe(self.state, memory.command, self.is_moving, memory.gait)

    @cached_property
    def feet_height(self) -> Tensor:
        """(N, 1, 4) [m] height of the feet's centres above the floor."""
        return above_floor(self.state, self.robots.feet(self.state.joint_pos))

    @cached_property
    def force_b(self) -> Tensor:
        """(N, 1, 3) the force on the trunk in its frame, relative to the largest force."""
        largest = max(self.constants.cfg.max_force, 1.0)
        return rotate_inverse(self.state.robot_rotation, self.memory.force) / largest

    @cached_property
    def load(self) -> Tensor:
        """(N, 1) load relative to the largest load, zeros without loads."""
        if not self.memory.has_load:
            return torch.zeros_like(self.memory.force[:, :, 0])
        return self.memory.load[..., 0] / self.constants.cfg.max_load


class StepFeatures(SceneFeatures):
    """Quantities in one control step."""

    terminated: Terminated  # what ends the episodes; rewards and measures may use it

    def __init__(
        self,
        state: SceneState,
        prev: SceneState,
        memory: VelocityMemory,
        constants: VelocityConstants,
        actuation: Actuation,
        collapse: CollapseTimers,
    ) -> None:
        """Describe the control step from ``prev`` to ``state``, and count it in the mean velocity
        and in the timers of ``collapse``.
        """
        super().__init__(state, memory, constants)
        self.prev = prev
        self.actuation = actuation
        self.velocity = planar_velocity(state)  # (N, 1, 3) in the units of a command
        memory.mean_velocity.lerp_(self.velocity, constants.step_of_mean)
        if memory.has_load:
            against = resistance(self.velocity[..., :1])
            memory.drag.copy_(-against * state.robot_frame[..., 0, :])
        collapse.update(state)
        self.is_collapsed = collapse.collapsed  # (N, 1) bool

    @cached_property
    def _error(self) -> Tensor:
        """(N, 1, 2, 3) command less velocity, momentary and mean."""
        reached = torch.stack((self.velocity, self.memory.mean_velocity), dim=2)
        return self.memory.command.unsqueeze(2) - reached

    @cached_property
    def tracking(self) -> Tracking:
        """Tracking rewards for the momentary velocity, and for the mean over a trot's cycle."""
        error = self._error
        # (N, 1, moment or mean, speed or turn).
        both = torch.stack((length(error[..., :2]), error[..., 2].abs()), dim=-1)
        moment = (both[:, :, 0] / TOLERANCE).square()
        mean = both[:, :, 1] / MEAN_TOLERANCE
        rewards = torch.exp(-torch.stack((moment, mean), dim=2)).flatten(2)
        return Tracking(*rewards.unbind(dim=-1))

    @cached_property
    def push(self) -> Tensor:
        """(N, 1) forward force against the load, relative to the largest load.

        Speed above the command adds nothing.
        """
        ahead = torch.minimum(self.velocity[..., 0], self.memory.command[..., 0])
        return self.load * resistance(ahead)

    @cached_property
    def missed(self) -> Tensor:
        """(N, 3) the mean velocity's absolute error: vx, vy [m/s], yaw rate [rad/s]."""
        return self._error[:, 0, 1].abs()

    @cached_property
    def _feet_and_rates(self) -> tuple[Tensor, Tensor]:
        """The feet's positions (N, 1, 4, 3) [m] and velocities [m/s] in the trunk frame."""
        return self.robots.feet_and_rates(self.state.joint_pos, self.state.joint_vel)

    @cached_property
    def feet_b(self) -> Tensor:
        """(N, 1, 4, 3) [m] feet in the trunk frame."""
        return self._feet_and_rates[0]

    @cached_property
    def wanted_swing(self) -> Tensor:
        """(N, 1, 4) desired height of each foot in its swing, relative to the top: 0 on the floor,
        1 at the top.
        """
        return self.constants.trot.swing(self.memory.gait.phase, self.is_moving)

    @cached_property
    def clearance(self) -> Tensor:
        """(N, 1, 4) [m] between the feet and the floor, in the Go1's size."""
        height = above_floor(self.state, self.feet_b) - self.robots.foot_radius
        return height / self.robots.size

    @cached_property
    def feet_error(self) -> Tensor:
        """(N, 1, 4) [m] difference between the feet's clearances and the swing's, in the Go1's
        size.
        """
        return (self.clearance - SWING_HEIGHT * self.wanted_swing).abs()

    @cached_property
    def square_sums(self) -> dict[str, Tensor]:
        """(N, 1) sums of squares by name, in the Go1's units and a few operations."""
        state = self.state
        robots = self.robots
        slip = horizontal_velocity(state, *self._feet_and_rates)
        slip = slip * (self.wanted_swing <= 0.0).unsqueeze(-1)
        offset = state.joint_pos - robots.joint_pos
        feet_ahead = self.feet_b[..., 0] - self.constants.nominal_feet
        if self.memory.has_load:
            resisting = self.memory.load * self.memory.drag.norm(dim=-1, keepdim=True)
            feet_ahead = feet_ahead + self.constants.lean * resisting
        torque = (
            robots.stiffness * (self.actuation.targets - state.joint_pos)
            - robots.damping * state.joint_vel
        )
        # In the order of ``_square_scales``
        vectors = {
            "height": state.robot_pos[..., 2:] - robots.walking_height,
            "tilt": state.up_b[..., :2],
            "bounce": state.robot_linvel[..., 2:],
            "sway": state.robot_angvel_b[..., :2],
            "slip": slip.flatten(-2),
            "hips": offset[..., 0::3],
            "placement": pair_offset(feet_ahead),
            "stance": offset * ~self.is_moving.unsqueeze(-1),
            "action_rate": self.actuation.change,
            "jerk": self.actuation.jerk,
            "torque": torque,
        }
        padded = []
        for vector in vectors.values():
            missing = self.constants.zeros[..., vector.shape[-1] :]
            padded += [vector, missing.expand(len(vector), -1, -1)]
        sums = torch.cat(padded, dim=-1).unflatten(-1, (len(vectors), -1)).square().sum(dim=-1)
        sums = sums * self.constants.scales
        return dict(zip(self.constants.square_scales, sums.unbind(dim=-1), strict=True))


def resistance(speed: Tensor) -> Tensor:
    """Return the resisting fraction (...) of a load at forward ``speed`` (...) [m/s].

    The fraction is 1 at walking speeds, as for sliding friction, and 0 backwards.
    """
    return torch.tanh(speed.clamp(min=0.0) / LOAD_SPEED)


def pair_offset(feet: Tensor) -> Tensor:
    """Return the front and rear feet's means (..., 2), from four feet's offsets (..., 4).

    In a trot a pair's feet swing against one another, so their mean stays in place.
    """
    return feet.unflatten(-1, (2, 2)).mean(dim=-1)


def above_floor(state: SceneState, points_b: Tensor) -> Tensor:
    """Return four points' heights (N, A, 4) [m], given in each trunk frame (N, A, 4, 3)."""
    return dot(state.up_b.unsqueeze(2), points_b) + state.robot_pos[..., 2:]


def horizontal_velocity(state: SceneState, points_b: Tensor, rates_b: Tensor) -> Tensor:
    """Return four points' velocities (N, A, 4, 2) [m/s], given ``rates_b`` in each trunk frame."""
    turning_b = torch.linalg.cross(state.robot_angvel_b.unsqueeze(2).expand_as(points_b), points_b)
    across = state.robot_rotation[..., :2, :].unsqueeze(2)
    moving = dot(across, (rates_b + turning_b).unsqueeze(-2))
    return moving + state.robot_linvel[..., :2].unsqueeze(2)
