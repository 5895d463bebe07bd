"""The push task for a learned model: the critic's state as numbers in the plane, with its rewards
and terminations.

B rows, A agents, S state size. A state is the critic's (``PushTask.observe`` with ``sincos`` and
``EP``): its frame stands at the object and looks at the goal. Rewards and terminations come from
the task's own functions. ``_scene`` alone makes assumptions about what these functions need and the
plane does not have.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mqe.tasks.push.features import StepFeatures, Teamwork
from mqe.world.geometry import in_frame, quat_from_yaw
from mqe.world.robots import Robots
from mqe.world.scene import STEP_DT, sliding_force
from mqe.world.state import SceneState

if TYPE_CHECKING:
    from mqe.tasks.push.task import PushTask

# [m/s] a pushed object as fast as this slides all the time, a slower one for a share of it.
SLIDING_SPEED = 0.05
PUSHING_REACH = 0.45  # [m] from the object's outline: no trunk further away was seen to push
PUSHING_SPEED = 0.5  # of the object's: a robot that moves along more slowly does not push it
TOUCHING = 0.3  # [m] two trunks as near as this touch one another


class PlanarPush:
    """What a learned model needs of a push task (``mqe.vec_env.Planar``)."""

    def __init__(self, task: PushTask, robots: Robots) -> None:
        """Judge as ``task`` does, whose robots are ``robots``; nothing of the task's memory is
        used or changed.
        """
        self._task = task
        self.num_robots = len(robots)
        terms = task.terms.state.terms.values()
        world = [term.numbers or () for term in terms if term.over is None]
        robot = [term.numbers or () for term in terms if term.over == "robots"]
        self.world_names = tuple(chain.from_iterable(world))
        self.robot_names = tuple(chain.from_iterable(robot))
        kinds = sorted({cfg.name for cfg in robots.cfgs})
        is_kind = [[float(cfg.name == kind) for kind in kinds[1:]] for cfg in robots.cfgs]
        self.kinds = torch.tensor(is_kind, device=robots.device).view(len(robots), -1)
        parts = task.constants.object.geoms
        # [m] on the floor.
        self._object_height = -min(part.pos[2] - 0.5 * part.size[-1] for part in parts)
        self._robot_height = robots.walking_height.view(-1).expand(len(robots))
        self._sliding_force = sliding_force(task.constants.object)

    def observe(self, state: Tensor) -> Tensor:
        """Return what agents see, (B, A, O), of states (B, S)."""
        scene = self._scene(state, torch.zeros_like(state[:, 0]))
        return self._task.observe(scene, state[:, :0])[0]

    def judge(self, state: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rewards (B, A) of a decision that went from one state to another (B, S), and
        what it ended (B,).

        In between, everything moves evenly. As in the environment, the first ending counts, and
        control steps after it give no reward.
        """
        task = self._task
        num_steps = self._task.decision_period
        share = torch.arange(num_steps + 1, device=state.device).view(-1, 1, 1) / num_steps
        between = self.tidy(torch.lerp(state, next_state, share))  # (K + 1, B, S)
        speed = (state[:, 0] - next_state[:, 0]) / (num_steps * STEP_DT)
        rows = self._scene(between.flatten(0, 1), speed.repeat(num_steps + 1)).rows
        scene, prev = (self._like(part) for part in (rows[:, len(state) :], rows[:, : -len(state)]))
        # Without timers no robot collapses, which takes a while.
        features = StepFeatures(scene, prev, task.constants, self._teamwork(scene, prev))
        features.terminated = task.terms.terminations(features)
        rewards = task.terms.rewards(features).sum(0).unflatten(0, (num_steps, -1))
        ended = features.terminated.rows.any(0).view(num_steps, -1)
        has_ended_before = torch.cat((torch.zeros_like(ended[:1]), ended[:-1])).cumsum(0) > 0
        return rewards.masked_fill(has_ended_before.unsqueeze(-1), 0.0).sum(0), ended.any(0)

    def tidy(self, state: Tensor) -> Tensor:
        """Return states (..., S) with headings of length 1 and a distance that is not negative."""
        world, robots = self.split(state)
        robots = torch.cat(
            (robots[..., :2], normalize(robots[..., 2:4], dim=-1), robots[..., 4:]), dim=-1
        )
        world = torch.cat(
            (world[..., :1].clamp(min=0.0), normalize(world[..., 1:], dim=-1)), dim=-1
        )
        return torch.cat((world, robots.flatten(-2)), dim=-1)

    def split(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Split states (..., S) into the numbers of the world (..., W) and of the robots (..., A,
        R).
        """
        num_world = len(self.world_names)
        return state[..., :num_world], state[..., num_world:].unflatten(-1, (self.num_robots, -1))

    def _scene(self, state: Tensor, speed: Tensor) -> SceneState:
        """Return scenes of states (B, S) whose objects move at ``speed`` (B,) [m/s] towards the
        goal.

        What the plane lacks is assumed. Robots are level, at walking height, with their knees off
        the floor, so that no robot falls or collapses. The object lies level on the floor, moves
        straight towards the goal or away from it, and its sideways motion does not turn the frame.
        A sliding object is pushed with the force of its sliding friction, in equal parts by the
        robots that are within reach behind it and move with it. Robots touch if their trunks are
        at most ``TOUCHING`` apart. Yaw is measured from the direction to the goal, which matters
        to the term ``ocb_expanded`` only.
        """
        world, robots = self.split(state)
        a = self.num_robots
        pairs = self._task.constants.pairs
        scene = SceneState.zeros(len(state), a, True, state.device)
        scene.body_pos[:, :a, :2] = robots[..., :2]
        scene.body_pos[:, :a, 2] = self._robot_height
        scene.body_pos[:, a, 2] = self._object_height
        heading = torch.cat((robots[..., 2:4], world[:, None, 1:3]), dim=1)
        scene.body_quat[:] = quat_from_yaw(torch.atan2(heading[..., 0], heading[..., 1]))
        scene.body_linvel[:, :a, :2] = robots[..., 4:6]
        scene.body_linvel[:, a, 0] = speed
        scene.robot_angvel_b[..., 2] = robots[..., 6]
        scene.goal_pos[:, 0] = world[:, 0]
        local = in_frame(robots[..., :2], scene.object_frame.unsqueeze(1))
        is_near = self._task.constants.footprint.distance(local) <= PUSHING_REACH
        way = torch.sign(speed).unsqueeze(1)
        follows = way * robots[..., 4] > PUSHING_SPEED * speed.abs().unsqueeze(1)
        pushes = is_near & (way * robots[..., 0] < 0.0) & follows
        force = self._sliding_force * (speed / SLIDING_SPEED).clamp(-1.0, 1.0).unsqueeze(1)
        scene.contact_force[..., 0] = force * pushes / pushes.sum(dim=1, keepdim=True).clamp(min=1)
        scene.robot_contact_force[..., 0] = (pairs.distance(scene.robot_pos) <= TOUCHING).to(
            state.dtype
        )
        return scene

    def _like(self, rows: Tensor) -> SceneState:
        return SceneState(rows, self.num_robots, True)

    def _teamwork(self, scene: SceneState, prev: SceneState) -> Teamwork:
        """Return a team that has pushed as it does now for a while, and whose object was never
        nearer to the goal.
        """
        effort = scene.contact_force[..., 0].clamp(min=0.0)
        return Teamwork(effort, prev.goal_distance.clone())
