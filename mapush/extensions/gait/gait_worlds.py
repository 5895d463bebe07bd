"""Worlds with one robot each, dropped as in the push task, under velocity commands."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mapush.extensions.gait.leg_motion import WalkingRobots
from mapush.extensions.gait.terminations import has_fallen
from mqe.controllers.gait import GaitController
from mqe.controllers.trot import planar_velocity
from mqe.registry import SimCfg, make_simulator
from mqe.tasks.drop import JOINT_SCATTER, TILT, VELOCITY, spawn_height
from mqe.world.actuators import TargetDelay
from mqe.world.collapse import CollapseTimers
from mqe.world.geometry import quat_from_rpy, quat_from_yaw, wrap_to_pi
from mqe.world.layout import Layout
from mqe.world.objects import ROBOT_FLOOR_FRICTION, ObjectCfg
from mqe.world.robots import DEFAULT_ROBOT
from mqe.world.scene import ACTUATOR_LAG, STEP_DT, build_scene, pack_layout, read_state
from mqe.world.state import SceneState
from mqe.world.streams import Streams, UniformRanges

_LOG = logging.getLogger(__name__)

GET_UP_TIME = 1.0  # [s] after the drop, in which a robot may get up and has not collapsed
_DROP = 200  # number of the random stream of spawns

GaitPolicy = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Walker:
    """A gait policy, from observation (N, 1, 59) to action (N, 1, 12), with its robot and its
    worlds.

    ``robot`` is the robot's registered name. ``model`` is its description, "physical" or
    "reference". ``foot_friction`` is its friction on the floor.
    """

    policy: GaitPolicy
    sim: SimCfg
    seed: int
    robot: str = DEFAULT_ROBOT
    model: str = "reference"
    foot_friction: float = ROBOT_FLOOR_FRICTION


class GaitWorlds:
    """N worlds with one robot each, driven by a gait policy. Falls and collapses are latched."""

    def __init__(
        self,
        walker: Walker,
        num_envs: int,
        *,
        latency: Tensor | None = None,
        obj: ObjectCfg | None = None,
        start: float | None = None,
    ) -> None:
        """Drop the robots at the origin with random yaw, or at x = ``start`` [m] headed along x.

        ``latency`` (N,) int64 delays joint targets [physics steps] beyond the motors' lag (None: no
        delay).
        """
        self.scene = build_scene(
            1,
            obj,
            robots=walker.robot,
            model=walker.model,
            foot_friction=(walker.foot_friction,),
        )
        self.sim = make_simulator(walker.sim, self.scene.model, num_envs)
        self.num_envs = num_envs
        self.device = self.sim.device
        self.streams = Streams(walker.seed, num_envs, self.device)
        self.robots = WalkingRobots(self.scene.robots, self.device)
        self._controller = GaitController(walker.policy, num_envs, self.robots)
        self._delay = TargetDelay(num_envs, self.scene.model.nu, self.device)
        self._latency: Tensor | int = ACTUATOR_LAG
        if latency is not None:
            self._latency = latency.to(self.device) + ACTUATOR_LAG
        everywhere = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        qpos, qvel, fixed = pack_layout(self.scene, self._drop(start))
        self.sim.write(everywhere, qpos, qvel, fixed)
        self.state = read_state(self.sim, self.scene)
        self._steps = 0  # control steps
        # (N,) bool: whether the robot has ever fallen, collapsed, or the world broken.
        self.fallen = ~everywhere
        self.collapsed = ~everywhere
        self._broken = ~everywhere
        self._timers = CollapseTimers(
            torch.zeros(num_envs, 1, CollapseTimers.SIZE, device=self.device), self.robots
        )

    @property
    def velocity(self) -> Tensor:
        """Velocity (N, 3): vx, vy [m/s] in the heading frame, yaw rate [rad/s]."""
        return planar_velocity(self.state)[:, 0]

    def num_falls(self, rows: slice = slice(None)) -> int:
        """Return the number of fallen robots in ``rows``."""
        return int(self.fallen[rows].sum())

    def along_x(self, speed: float) -> Tensor:
        """Return commands (N, 3) for walking towards positive x at ``speed`` [m/s]."""
        turn = wrap_to_pi(-self.state.robot_yaw[:, 0])
        ahead = torch.full_like(turn, speed)
        aside = -self.state.robot_pos[:, 0, 1]
        return torch.stack((ahead, aside.clamp(-0.2, 0.2), (2.0 * turn).clamp(-0.5, 0.5)), dim=1)

    def advance(self, command: Tensor, watch: Callable[[SceneState], None] | None = None) -> None:
        """Follow ``command`` (N, 3) for a control step. ``watch`` gets the state before each
        physics step.
        """
        self._controller.command(command.unsqueeze(1))
        targets = self._controller.targets(self.state).flatten(1)
        rows = self._delay.send(targets, self._latency)
        if watch is None:
            self.sim.step(len(rows), rows)
            self._look()
        else:
            for row in rows:
                watch(self.state)
                self.sim.step(1, row.unsqueeze(0))
                self._look()
        self._steps += 1
        self._timers.update(self.state)
        self.fallen |= has_fallen(self.state, self.robots)[:, 0] | self._broken
        if self._steps * STEP_DT > GET_UP_TIME:
            self.collapsed |= self._timers.collapsed[:, 0] | self._broken

    def close(self) -> None:
        """Free the simulator."""
        self.sim.close()
        num_broken = int(self._broken.sum())
        if num_broken:
            _LOG.warning(
                "%d of %d worlds broke: counted as fallen and collapsed", num_broken, self.num_envs
            )

    def _look(self) -> None:
        """Read the state. Broken worlds keep their last valid state, fallen and collapsed."""
        state = read_state(self.sim, self.scene)
        self._broken |= self.sim.data.failed | ~state.rows.isfinite().all(dim=0)
        self.state = state.like(torch.where(self._broken, self.state.rows, state.rows))

    def _drop(self, start: float | None) -> Layout:
        """Draw initial poses from the push task's ranges of height, tilt, velocity and joint
        angles.
        """
        joints = [
            (JOINT_SCATTER[0] * q, JOINT_SCATTER[1] * q) for q in self.scene.robots[0].joint_pos
        ]
        yaw = (-math.pi, math.pi) if start is None else (0.0, 0.0)
        ranges = UniformRanges([TILT, TILT, yaw, *[VELOCITY] * 6, *joints], self.device)
        drawn = ranges.draw(self.streams, _DROP, self.streams.once)
        obj = self.scene.object
        zeros = drawn.new_zeros(self.num_envs, 3)
        pos = drawn.new_tensor([start or 0.0, 0.0, spawn_height(self.scene.robots[0])])
        object_pos = drawn.new_tensor([0.0, 0.0, 0.0 if obj is None else obj.spawn_height])
        return Layout(
            robot_pos=pos.expand_as(zeros).unsqueeze(1),
            robot_quat=quat_from_rpy(drawn[:, None, :3]),
            robot_vel=drawn[:, None, 3:9],
            joint_pos=drawn[:, None, 9:],
            object_pos=object_pos.expand_as(zeros),
            object_quat=quat_from_yaw(zeros[:, 0]),
            goal_pos=zeros,
        )
