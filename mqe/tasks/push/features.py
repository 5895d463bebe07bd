"""Features of the push task: quantities for its terms, each computed on first use.

N worlds, A robots, P = A (A - 1) / 2 pairs, B = A + 1 bodies with the object, C memory columns.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor

from mqe.tasks.push.posture import Posture, success
from mqe.tasks.push.roster import Roster
from mqe.tasks.push.senses import chosen_senses
from mqe.tasks.push.settings import PUSH_TERMS, PushCfg
from mqe.tasks.term_settings import chosen_weights
from mqe.tasks.terms import EpisodeFeatures, Memory, Terminated
from mqe.world.collapse import CollapseTimers
from mqe.world.geometry import TWO_PI, axes_along, dot, in_frame, length, wrap_to_pi
from mqe.world.objects import REST_SPEED, Footprint, ObjectCfg, repeated
from mqe.world.robots import Robots
from mqe.world.scene import STEP_DT
from mqe.world.shapes import common_object
from mqe.world.state import SceneState

EFFORT_TIME = 1.0  # [s] over which pushes are averaged: legs push in jolts
LEAST_EFFORT = 1.0  # [N] a team that pushes less hard has no shares
LEAST_FORCE = 1e-3  # [N] a force has a direction
NOSE_ANGLE = math.radians(60.0)  # a push within this angle of the nose is ahead, of the tail back
TANGLE_TIME = 1.0  # [s] two robots in contact for so long without interruption are tangled
# [s] A shorter gap is no interruption: legs that are caught in one another still step.
GAP_TIME = 0.1
COLLABORATION_DISTANCE = 0.5  # [m] trunk to the object's outline: close enough to be at work
# [m] trunk to the object's origin, the reference's definition
REFERENCE_COLLABORATION_DISTANCE = 1.0


class Pairs:
    """The P = A (A - 1) / 2 pairs of A robots, as indices on one device."""

    def __init__(self, num_agents: int, device: torch.device | str = "cpu") -> None:
        pairs = list(combinations(range(num_agents), 2))
        self.robots = torch.tensor(pairs, dtype=torch.int64, device=device).view(-1, 2)  # (P, 2)
        pairs_of_robot = [
            [k for k, pair in enumerate(pairs) if i in pair] for i in range(num_agents)
        ]
        # (A, A - 1) the pairs that a robot is part of.
        self.own = torch.tensor(pairs_of_robot, dtype=torch.int64, device=device)

    def distance(self, pos: Tensor) -> Tensor:
        """Return the distances (N, P) between positions (N, A, 3)."""
        both = pos[:, self.robots]
        return length(both[:, :, 0] - both[:, :, 1])

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum (N, A) of each robot's pairs' values (N, P)."""
        return values[:, self.own].sum(dim=-1)


class PushConstants:
    """Constants for a push task's features."""

    def __init__(
        self,
        cfg: PushCfg,
        num_agents: int,
        device: torch.device | str = "cpu",
        shapes: Sequence[ObjectCfg] = (),
    ) -> None:
        """Compute the constants for the settings ``task`` and a team of ``num_agents``.

        ``shapes`` are the worlds' own objects, if they differ.
        """
        a = num_agents
        self.cfg = cfg
        self.num_agents = num_agents
        if shapes:
            self.object = common_object(shapes)
        else:
            self.object = cfg.pushed_object()
        self.footprint = Footprint(self.object, device, shapes)
        self.load = torch.zeros(1, device=device)  # (N,) or (1,) [N] push that slides the object
        self.pairs = Pairs(a, device)
        self.posture = Posture(
            a, self.object, cfg.roll_limit, cfg.pitch_limit, torch.device(device)
        )
        # Row i lists robot i, then i - 1, i - 2, ... round the team.
        order = [[(i - k) % a for k in range(a)] for i in range(a)]
        self.order = torch.tensor(order, dtype=torch.int64, device=device)
        # Row i lists the bodies that robot i observes: the object (body A), then the others.
        observed = [[a, *row[1:]] for row in order]
        self.observed = torch.tensor(observed, dtype=torch.int64, device=device)
        # Columns of the observed memory: the roster's, the goal's heading, the senses'
        self.roster_size = 0
        if cfg.observation == "sets":
            self.roster_size = Roster.size(a)
        self.memory_size = self.roster_size
        if cfg.goal_heading is not None:
            self.memory_size += 1
        self.senses = chosen_senses(cfg.senses)
        self.first_sensed = self.memory_size
        if self.senses is not None:
            self.memory_size += self.senses[0].num_columns(a)

    def heading_error(self, object_yaw: Tensor, goal_heading: Tensor | None) -> Tensor:
        """Return the signed angle (N,) [rad] from the object's heading to ``goal_heading`` (N,).

        A symmetric object has several headings that look alike: the one nearest to the goal's
        counts. The angle is 0 for a round object, and without a goal heading.
        """
        if goal_heading is None:
            return torch.zeros_like(object_yaw)
        num_equal = self.footprint.equal_headings_of(len(object_yaw))
        folded = wrap_to_pi((goal_heading - object_yaw) * num_equal)
        return folded / num_equal.clamp(min=1.0)


def gained(nearest: Tensor, prev_distance: Tensor, distance: Tensor) -> Tensor:
    """Return the new ground (N,) [m] gained in a control step, and update the ``nearest`` approach.

    The object moved from ``prev_distance`` to ``distance`` (N,) [m] from the goal.
    """
    torch.minimum(nearest, prev_distance, out=nearest)
    ground = (nearest - distance).clamp(min=0.0)
    torch.minimum(nearest, distance, out=nearest)
    return ground


class Effort:
    """Each robot's push, smoothed over about a second."""

    def __init__(self, values: Tensor) -> None:
        """Keep the efforts in ``values`` (N, A) [N]. They begin at 0."""
        self.values = values

    def add(self, push: Tensor) -> None:
        """Add one control step. A ``push`` (N, A) [N] away from the goal counts as 0."""
        self.values.lerp_(push.clamp(min=0.0), STEP_DT / EFFORT_TIME)

    def equality(self, is_out: Tensor | None = None) -> Tensor:
        """Return A times the smallest robot's fraction (N,) of the summed efforts.

        Robots in ``is_out`` (N, A) are excluded.
        """
        if is_out is None:
            total = self.values.sum(dim=1).clamp(min=LEAST_EFFORT)
            return self.values.amin(dim=1) * self.values.shape[1] / total
        total = self.values.masked_fill(is_out, 0.0).sum(dim=1).clamp(min=LEAST_EFFORT)
        least = self.values.masked_fill(is_out, torch.finfo().max).amin(dim=1)
        return least * (~is_out).sum(dim=1) / total


class TangleTimers:
    """How long each pair of robots has been in contact, and how long ago they touched."""

    SIZE = 2  # numbers a pair

    def __init__(self, values: Tensor) -> None:
        """Keep the timers in ``values`` (N, P, 2) [s]: contact, time since the last touch.

        Zeros stand for separate robots.
        """
        self.values = values

    def update(self, is_touching: Tensor) -> None:
        """Add one control step. ``is_touching`` (N, P) bool marks the pairs in contact at
        its end.
        """
        contact, gap = self.values.unbind(dim=-1)
        gap.add_(STEP_DT).masked_fill_(is_touching, 0.0)
        is_kept = is_touching | ((contact > 0.0) & (gap < GAP_TIME - 0.5 * STEP_DT))
        contact.add_(STEP_DT).mul_(is_kept)

    @property
    def tangled(self) -> Tensor:
        """(N, P) bool: the pair has been in contact for too long."""
        return self.values[..., 0] > TANGLE_TIME - 0.5 * STEP_DT


class StepMemory:
    """What a push task remembers from one control step to the next."""

    def __init__(self, memory: Memory, constants: PushConstants, robots: Robots) -> None:
        """Keep everything in ``memory``."""
        num_agents = constants.num_agents
        num_pairs = len(constants.pairs.robots)
        # (N,) [m] the object's nearest approach to the goal
        self.nearest = memory.remember("nearest", start=torch.inf)
        self.effort = Effort(memory.remember("effort", num_agents))
        self.effort_ahead: Effort | None = None
        # Only with its weight, so that other runs' training states keep their tensors.
        if "shared_progress_ahead" in chosen_weights(PUSH_TERMS.rewards, constants.cfg):
            self.effort_ahead = Effort(memory.remember("effort_ahead", num_agents))
        collapse = memory.remember("collapse", num_agents, CollapseTimers.SIZE)
        self.collapse = CollapseTimers(collapse, robots)
        self.rest: Tensor | None = None  # (N,) [s] the object's resting time at the goal
        if constants.cfg.success_rest_s > 0.0:
            self.rest = memory.remember("rest")
        self.tangle = TangleTimers(memory.remember("tangle", num_pairs, TangleTimers.SIZE))


class SceneFeatures:
    """Quantities at one moment, planar unless said otherwise."""

    def __init__(
        self, state: SceneState, constants: PushConstants, memory: Tensor | None = None
    ) -> None:
        """Describe ``state``. ``memory`` (N, C) holds the ``Roster`` for sets, and the goal's
        heading.

        Without ``memory`` all robots take part and observe one another, and the settings give the
        goal's heading.
        """
        self.state = state
        self.constants = constants
        self.pairs = constants.pairs
        self._memory = memory

    @cached_property
    def offset(self) -> Tensor:
        """(N, A, 3) [m] from the object's origin to each trunk, in space."""
        return self.state.robot_pos - self.state.object_pos.unsqueeze(1)

    @cached_property
    def load(self) -> Tensor:
        """(N, 1) [100 N] push that slides the object."""
        num_worlds = len(self.state.goal_distance)
        load = repeated(self.constants.load, num_worlds).expand(num_worlds)
        return load.unsqueeze(1) / 100.0

    @cached_property
    def center_distance(self) -> Tensor:
        """(N, A) [m] trunk to the object's origin."""
        return length(self.offset[..., :2])

    @cached_property
    def ahead(self) -> Tensor:
        """(N, A) [m] each trunk's position beyond the object's origin along the direction to the
        goal, negative behind it.
        """
        return dot(self.offset[..., :2], self.state.goal_direction.unsqueeze(1))

    @cached_property
    def local_robot(self) -> Tensor:
        """(N, A, 2) [m] trunks in the object frame."""
        return in_frame(self.offset[..., :2], self.state.object_frame.unsqueeze(1))

    @cached_property
    def local_goal(self) -> Tensor:
        """(N, 1, 2) ``state.goal_direction`` in the object frame."""
        return in_frame(self.state.goal_direction, self.state.object_frame).unsqueeze(1)

    @cached_property
    def outline_distance(self) -> Tensor:
        """(N, A) [m] trunk to the object's true outline, 0 inside."""
        return self.constants.footprint.distance(self.local_robot)

    @cached_property
    def inward(self) -> Tensor:
        """(N, A, 2) inward unit normal of the reward outline's nearest edge, object frame."""
        return self.constants.footprint.push_direction(self.local_robot)

    @cached_property
    def facing_object(self) -> Tensor:
        """(N, A) cosine between each robot's heading and the way to the true outline."""
        nose = in_frame(self.state.robot_frame[..., 0, :], self.state.object_frame.unsqueeze(1))
        return dot(nose, self.constants.footprint.towards(self.local_robot))

    @cached_property
    def pair_distance(self) -> Tensor:
        """(N, P) [m] distance in space between every pair's trunks."""
        return self.pairs.distance(self.state.robot_pos)

    @cached_property
    def is_touching(self) -> Tensor:
        """(N, P) bool: the pair's robots are in contact."""
        return (self.state.robot_contact_force != 0.0).any(dim=-1)

    @cached_property
    def push_ahead(self) -> Tensor:
        """(N, A) [N] each robot's useful push, weighted by its alignment with the robot's heading.

        The weight is the cosine between contact force and heading. Negative values count as 0.
        """
        force = self.state.contact_force[..., :2]
        nose = self.state.robot_frame[..., 0, :]
        cosine = dot(force, nose) / force.norm(dim=-1).clamp(min=LEAST_FORCE)
        return self.state.useful_push.clamp(min=0.0) * cosine.clamp(min=0.0)

    @cached_property
    def push_concert(self) -> Tensor:
        """(N, 1) size of the sum of the robots' pushes over the sum of their sizes.

        1: all push one way, 0: the pushes cancel out.
        """
        force = self.state.contact_force[..., :2]
        sizes = force.norm(dim=-1).sum(dim=-1, keepdim=True)
        return force.sum(dim=1).norm(dim=-1, keepdim=True) / sizes.clamp(min=LEAST_EFFORT)

    @cached_property
    def push_astray(self) -> Tensor:
        """(N, A) [N] each robot's contact force on the object if over 60 degrees off the robot's
        heading, else 0.
        """
        force = self.state.contact_force[..., :2]
        magnitude = force.norm(dim=-1)
        along = dot(force, self.state.robot_frame[..., 0, :])
        return magnitude * (along < math.cos(NOSE_ANGLE) * magnitude)

    @cached_property
    def places_b(self) -> Tensor:
        """(N, A, 1 + A, 2) [m] positions of goal, object and other robots in each robot's heading
        frame.
        """
        a = self.constants.num_agents
        pos = self.state.body_pos[..., :2]
        goal = self.state.goal_pos[:, :2].view(-1, 1, 1, 2).expand(-1, a, -1, -1)
        places = torch.cat((goal, pos[:, self.constants.observed]), dim=2)
        return in_frame(places - pos[:, :a].unsqueeze(2), self.state.robot_frame.unsqueeze(2))

    @cached_property
    def bodies_b(self) -> Tensor:
        """(N, A, A, 4) object and others in each robot's heading frame: x, y [m], sine and cosine
        of heading.
        """
        ahead = self.state.frame[:, self.constants.observed, 0]
        turned = in_frame(ahead, self.state.robot_frame.unsqueeze(2)).flip(-1)
        return torch.cat((self.places_b[:, :, 1:], turned), dim=-1)

    @cached_property
    def bodies_yaw_b(self) -> Tensor:
        """(N, A, A, 3) object and others in each robot's heading frame: x, y [m], heading [rad] in
        [0, 2 pi).
        """
        turned = self.state.yaw[:, self.constants.observed] - self.state.robot_yaw.unsqueeze(2)
        turned = torch.remainder(turned, TWO_PI).unsqueeze(-1)
        return torch.cat((self.places_b[:, :, 1:], turned), dim=-1)

    @cached_property
    def object_velocity_b(self) -> Tensor:
        """(N, A, 2) [m/s] velocity of the object in each robot's heading frame."""
        return in_frame(self.state.object_linvel[:, None, :2], self.state.robot_frame)

    @cached_property
    def _towards_goal(self) -> tuple[Tensor, Tensor, Tensor]:
        """Headings (N, B, 2) (sine, cosine), positions (N, A, 2) [m] and velocities (N, A, 2) [m/s]
        in the goal frame.

        The frame's origin is the object, and its x axis points to the goal.
        """
        a = self.constants.num_agents
        state = self.state
        pos = state.body_pos[..., :2]
        moving = state.robot_linvel[..., :2]
        planar = torch.cat((state.frame[:, :, 0], pos[:, :a] - pos[:, a:], moving), dim=1)
        planar = in_frame(planar, axes_along(state.goal_direction).unsqueeze(1))
        ahead, places, velocities = planar.split((a + 1, a, a), dim=1)
        return ahead.flip(-1), places, velocities

    @cached_property
    def object_heading(self) -> Tensor:
        """(N, 2) sine and cosine of the object's heading, relative to the goal's direction."""
        return self._towards_goal[0][:, self.constants.num_agents]

    @cached_property
    def goal_heading(self) -> Tensor | None:
        """(N,) [rad] the object's heading at the goal, world frame, None without
        ``task.goal_heading``.
        """
        heading = self.constants.cfg.goal_heading
        if heading is None:
            return None
        if self._memory is None:
            return torch.full_like(self.state.goal_distance, heading)
        return self._memory[:, self.constants.roster_size]

    @cached_property
    def heading_error(self) -> Tensor:
        """(N,) [rad] signed angle from the object's heading to the goal's.

        A symmetric object has several equal headings; the nearest one counts.
        """
        return self.constants.heading_error(self.state.object_yaw, self.goal_heading)

    @cached_property
    def heading_error_axes(self) -> Tensor:
        """(N, 2) sine and cosine of the heading error times the object's order of symmetry.

        The order is the number of headings at which the object looks alike. Both numbers are
        continuous where the nearest of these headings changes.
        """
        error = self.heading_error
        angle = error * self.constants.footprint.equal_headings_of(len(error))
        return torch.stack((angle.sin(), angle.cos()), dim=-1)

    @property
    def heading_error_axes_b(self) -> Tensor:
        """(N, A, 2) ``heading_error_axes`` as each robot knows them."""
        return self.heading_error_axes.unsqueeze(1).expand(-1, self.constants.num_agents, -1)

    @cached_property
    def robots_towards_goal(self) -> Tensor:
        """(N, A, 7) every robot in the goal frame: position [m], heading (sine, cosine), velocity
        [m/s], yaw rate [rad/s].

        The frame's origin is the object, and its x axis points to the goal.
        """
        heading, places, velocities = self._towards_goal
        turning = self.state.yaw_rate.unsqueeze(-1)
        robot_headings = heading[:, : self.constants.num_agents]
        return torch.cat((places, robot_headings, velocities, turning), dim=-1)

    @cached_property
    def roster(self) -> Roster:
        """Participating robots, and each robot's observed ones."""
        size = self.constants.roster_size
        if self._memory is None or not size:
            size = Roster.size(self.constants.num_agents)
            all_there = self.state.goal_distance.new_ones(1, size).expand(len(self.state.yaw), -1)
            return Roster(all_there, self.constants.num_agents)
        return Roster(self._memory[:, :size], self.constants.num_agents)

    @cached_property
    def outline(self) -> Tensor:
        """(N, P, 2) [m] from the object's origin to points of its outline, along the arena's
        axes.
        """
        axes = self.state.object_frame.unsqueeze(1)
        points = self.constants.footprint.points_of(len(axes))
        return points[..., :1] * axes[..., 0, :] + points[..., 1:] * axes[..., 1, :]

    @cached_property
    def outline_b(self) -> Tensor:
        """(N, A, P, 3) points of the object's outline in each robot's heading frame: presence, x, y
        [m].
        """
        to_object = -self.offset[..., :2].unsqueeze(2)
        points = to_object + self.outline.unsqueeze(1)
        points_b = in_frame(points, self.state.robot_frame.unsqueeze(2))
        return torch.cat((torch.ones_like(points_b[..., :1]), points_b), dim=-1)

    @cached_property
    def yaw(self) -> Tensor:
        """(N, B, 1) [rad] headings in [0, 2 pi), world frame."""
        return torch.remainder(self.state.yaw, TWO_PI).unsqueeze(-1)

    @cached_property
    def robots_in_arena(self) -> Tensor:
        """(N, A, 6) position [m], yaw [rad], velocity [m/s] and yaw rate [rad/s] of every robot,
        world frame.
        """
        a = self.constants.num_agents
        pos = self.state.body_pos[:, :a, :2]
        turning = self.state.yaw_rate.unsqueeze(-1)
        moving = self.state.robot_linvel[..., :2]
        return torch.cat((pos, self.yaw[:, :a], moving, turning), dim=-1)


class StepFeatures(SceneFeatures):
    """Quantities in one control step: at its end, and compared with earlier states."""

    terminated: Terminated  # what ends the episodes; rewards and measures may use it

    def __init__(
        self,
        state: SceneState,
        prev: SceneState,
        constants: PushConstants,
        steps: StepMemory,
        is_out: Tensor | None = None,
        memory: Tensor | None = None,
    ) -> None:
        """Describe the control step from ``prev`` to ``state``, with the memory ``steps`` at its
        start.

        Robots in ``is_out`` (N, A) neither fall nor collapse, and nobody waits for their push.
        None: all robots are present. ``memory`` (N, C) holds the ``Roster`` for sets, and the
        goal's heading.
        """
        super().__init__(state, constants, memory)
        self.prev = prev
        self._steps = steps
        self._collapse = steps.collapse
        self._tangle = steps.tangle
        self._rest = steps.rest
        self._is_out = is_out

    @cached_property
    def _gained(self) -> Tensor:
        return gained(self._steps.nearest, self.prev.goal_distance, self.state.goal_distance)

    @cached_property
    def shared_progress(self) -> Tensor:
        """(N,) [m] gained distance towards the goal, times the equality of pushes."""
        self._steps.effort.add(self.state.useful_push)
        return self._gained * self._steps.effort.equality(self._is_out)

    @cached_property
    def shared_progress_ahead(self) -> Tensor:
        """(N,) [m] gained distance towards the goal, times the equality of pushes ahead."""
        effort = self._steps.effort_ahead
        assert effort is not None, "its weight is 0"
        effort.add(self.push_ahead)
        return self._gained * effort.equality(self._is_out)

    @cached_property
    def is_success(self) -> Tensor:
        """(N,) bool: the object is at the goal and has rested there for the required time.

        The first read counts this control step.
        """
        if self._rest is None:
            return self.is_at_goal
        self._rest.add_(STEP_DT).mul_(self.is_at_goal & self.is_still)
        return self._rest > self.constants.cfg.success_rest_s - 0.5 * STEP_DT

    @cached_property
    def is_at_goal(self) -> Tensor:
        """(N,) bool: the object has the goal's position and, if required, the goal's heading."""
        cfg = self.constants.cfg
        is_there = success(self.state.goal_distance, cfg.success_radius)
        if cfg.success_heading is None:
            return is_there
        return is_there & (self.heading_error.abs() < cfg.success_heading)

    @cached_property
    def prev_heading_error(self) -> Tensor:
        """(N,) [rad] ``heading_error`` at the control step's start."""
        return self.constants.heading_error(self.prev.object_yaw, self.goal_heading)

    @cached_property
    def is_still(self) -> Tensor:
        """(N,) bool: the object's origin is slower than 0.02 m/s."""
        return length(self.state.object_linvel) < REST_SPEED

    @cached_property
    def is_lost(self) -> Tensor:
        """(3, N) bool: a roll, a pitch or a height is beyond its limit."""
        return self.constants.posture.lost(
            self.state.rotation, self.state.body_pos[..., 2], self._is_out
        )

    @cached_property
    def is_collapsed(self) -> Tensor:
        """(N,) bool: a robot has lain or knelt for a while. The first read counts this control
        step.
        """
        self._collapse.update(self.state)
        collapsed = self._collapse.collapsed
        if self._is_out is not None:
            collapsed = collapsed & ~self._is_out
        return collapsed.any(dim=1)

    @cached_property
    def is_tangled(self) -> Tensor:
        """(N,) bool: two robots have touched for a while. The first read counts this control
        step.
        """
        self._tangle.update(self.is_touching)
        return self._tangle.tangled.any(dim=1)

    @cached_property
    def never(self) -> Tensor:
        """(N,) bool: False everywhere."""
        return torch.zeros_like(self.state.goal_distance, dtype=torch.bool)

    @cached_property
    def is_together(self) -> Tensor:
        """(N, 2) bool: all robots are at work, by our definition and by the reference's."""
        at_work = self.outline_distance <= COLLABORATION_DISTANCE
        near = self.center_distance < REFERENCE_COLLABORATION_DISTANCE
        return torch.stack((at_work, near), dim=1).all(dim=2)


class PushEpisodes(EpisodeFeatures):
    """Quantities for finished push episodes."""

    @cached_property
    def is_success(self) -> Tensor:
        """(N,) bool: the object was at the goal, at the end or, if success does not end an episode,
        at any time.
        """
        if "is_reached" in self.measures.terms:
            return self.happened("is_reached")
        return self.terminated["success"]

    @cached_property
    def time(self) -> Tensor:
        """(N,) [s] length of the episode, or the time until the object was at the goal first."""
        if "is_reached" not in self.measures.terms:
            return super().time
        since = self.sum("is_reached")
        steps = torch.where(self.is_success, self.steps - since + 1.0, self.steps)
        return steps * STEP_DT

    @cached_property
    def means_of_successes(self) -> Tensor:
        """(N, M) all measures' means over the control steps in successes, NaN for others."""
        return torch.where(self.is_success.unsqueeze(1), self.means, torch.nan)
