"""High level, task ``go1push_upper``: one agent leads a frozen team around obstacles."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mapush.extensions.navigate.default_terms import default_terms
from mapush.extensions.navigate.features import (
    PAST,
    NavigateConstants,
    NavigateEpisodes,
    Plan,
    SceneFeatures,
    StepFeatures,
)
from mapush.extensions.navigate.frozen_team import TeamController
from mapush.extensions.navigate.maps.table import MapTable
from mapush.extensions.navigate.planners.entries import PLANNERS
from mapush.extensions.navigate.planners.followers import (
    APPROACH,
    SLOW,
    STANDSTILL,
    Follower,
    swayed,
    turned,
)
from mapush.extensions.navigate.planners.live import LiveProblem, MovingProblem, SeenProblem
from mapush.extensions.navigate.planners.problem import Problem
from mapush.extensions.navigate.settings import ACTIONS, NAVIGATE_TERMS, NavigateCfg
from mqe.tasks.push.layouts import PushLayouts
from mqe.tasks.task import Outcome, ShownPlan, TaskFeatures, TermTask
from mqe.tasks.term_settings import build_terms
from mqe.tasks.terms import Memory, Terminated, Worlds
from mqe.vec_env import Image, Symmetries
from mqe.world.collapse import CollapseTimers
from mqe.world.geometry import length, quat_from_yaw
from mqe.world.layout import Layout, MovedProps
from mqe.world.robots import Robots
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState
from mqe.world.streams import Streams

_BEHIND = 0.25  # [m] between the object's furthest corner and the robots of a row behind it
_LONGEST_WAY = 64  # points of a way that is drawn
_NEAR_GOAL = 0.1  # [m] from the goal to the last point of that way
_SHOWN_CELL = 3  # cells of the planner's grid along a side of one that is drawn
_SPACING = 0.9  # [m] between the robots of a row


def row_behind(count: int, reach: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return places (1, A, 2) and quaternions (1, A, 4) for robots in a row behind an object,
    looking along x.

    ``reach`` [m] is the distance from the object's origin to its furthest corner.
    """
    left = _SPACING * (torch.arange(count, device=device) - 0.5 * (count - 1))
    behind = torch.full_like(left, -reach - _BEHIND)
    row = torch.stack((behind, left), dim=-1).unsqueeze(0)
    return row, quat_from_yaw(torch.zeros_like(row[..., 0]))


class NavigateTask(TermTask):
    """N worlds, one agent, two numbers an action in [-1, 1].

    They shift the planned sub-goal ahead and to the left.
    """

    num_agents = 1
    action_sizes: tuple[int, ...] = (2,)

    def __init__(
        self,
        cfg: NavigateCfg,
        num_envs: int,
        robots: Robots,
        streams: Streams,
        team: TeamController,
        layouts: PushLayouts,
        maps: MapTable,
        constants: NavigateConstants,
        shortest: Tensor,
    ) -> None:
        """Lead ``team`` of ``robots`` on ``maps`` with shortest ways ``shortest`` (L,) [m]."""
        device = robots.device
        self.cfg = cfg
        self.decision_period = cfg.decision_period
        self.max_episode_length = round(cfg.episode_length_s / STEP_DT)
        self.constants = constants
        self._row, self._row_quat = row_behind(len(robots), constants.problem.reach, robots.device)
        self._streams = streams
        self._team = team
        self._layouts = layouts
        self._maps = maps
        self._shortest = shortest
        is_live = maps.has_movers or maps.has_moving_goals
        self._moving = MovingProblem(constants.problem, num_envs) if is_live else None

        worlds = Worlds(num_envs, 1, device, cfg)
        memories = Memory(worlds)
        self._map_index = memories.remember("map_index", start=None, dtype=torch.int64)
        self._collapse = CollapseTimers(
            memories.remember("collapse", len(robots), CollapseTimers.SIZE), robots
        )
        # Control steps of each episode.
        self._steps = memories.remember("steps", dtype=torch.int64) if is_live else None
        # The cost-to-go after the last control step, for moving goals.
        self._last_cost = (
            memories.remember("last_cost", start=None) if maps.has_moving_goals else None
        )
        self._cost = torch.zeros(num_envs, device=device)  # the same after the present one
        # Decisions of each episode in which the object stood still, but for the robots' approach.
        self._standstill = memories.remember("standstill", start=-APPROACH, dtype=torch.int64)
        # Decisions in a row in which it was slow, but moved.
        self._slow = memories.remember("slow", dtype=torch.int64)
        plan = memories.remember("plan", Plan.SIZE, start=None)
        self._plan = Plan.of(plan)
        self._forgetting = (
            1.0 - (-STEP_DT * cfg.decision_period / torch.tensor(PAST, device=device)).exp()
        )
        # Control steps of the present decision; equal in all worlds.
        self._age = 0
        self._proposed = (self._map_index.clone(), self._plan.planned.clone())
        self._action = torch.zeros(num_envs, 2, device=device)
        self._everywhere = torch.ones(num_envs, dtype=torch.bool, device=device)

        num_obstacles = len(constants.half_size)
        empty = SceneState.zeros(1, len(robots), True, device, num_obstacles)
        scene = self.scene_features(empty, plan[:1])
        terms = build_terms(NAVIGATE_TERMS, default_terms(cfg), cfg, worlds, scene)
        super().__init__(terms, worlds, memories, plan)
        self._follower: Follower
        self.use_planner(cfg.planner)
        action = Image.of(range(2), (1.0, -1.0), torch.device(device))
        self.symmetries = Symmetries(self.mirror_image(action))

    def use_planner(self, name: str) -> None:
        """Plan with the planner of this name from the next decision on."""
        planner = PLANNERS.find(name, "task.planner")
        replans = planner.replans or self._maps.has_moving_goals
        # Problems that change: of the cost-to-go, and of the planner.
        self._measured: LiveProblem | None = self._moving if replans else None
        self._followed: LiveProblem | None = self._moving if planner.replans else None
        if planner.explores:
            num_envs = len(self._map_index)
            self._followed = SeenProblem(self.constants.problem, num_envs, self._kept)
        problem, _ = self._problem_of(self._followed)
        self._follower = planner.follow(problem, self.cfg.look_ahead)
        self._sways = planner.sways

    def layout(self, episode: Tensor) -> Layout:
        """Return the start for episode number ``episode`` (N,) on its map."""
        maps = self._maps
        index = torch.remainder(self._streams.numbers + episode, len(maps.goal))
        start = maps.start[index]
        self._proposed = (index, start)

        drawn = self._layouts.draw(self._streams, episode)
        shift = torch.nn.functional.pad(start, (0, 1))
        yaw = maps.start_yaw[index]
        is_drawn = yaw.isnan().unsqueeze(1)
        object_quat = torch.where(is_drawn, drawn.object_quat, quat_from_yaw(yaw.nan_to_num()))
        is_behind = maps.is_behind[index]
        height = drawn.robot_pos[..., 2:]
        behind = torch.cat((self._row.expand(len(index), -1, -1), height), dim=-1)
        wide = is_behind.view(-1, 1, 1)
        return drawn._replace(
            robot_pos=torch.where(wide, behind, drawn.robot_pos) + shift.unsqueeze(1),
            robot_quat=torch.where(wide, self._row_quat, drawn.robot_quat),
            object_pos=drawn.object_pos + shift,
            object_quat=object_quat,
            goal_pos=torch.nn.functional.pad(maps.goal[index], (0, 1)),
            obstacle_pos=maps.obstacle_pos[index],
            obstacle_quat=quat_from_yaw(maps.obstacle_yaw[index]),
        )

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes in ``mask``, and plan from the new starts."""
        self._team.begin(mask)
        super().begin(mask)
        index, start = self._proposed
        self._map_index.copy_(torch.where(mask, index, self._map_index))
        self._update_plan(start, mask)

    def _count_standstill(self, progress: Tensor) -> Tensor:
        """Count standing and slow decisions, and return a mask (N,) of standing objects.

        ``progress`` (N, 2) [m] is the cost-to-go's averages minus the cost-to-go. An object's first
        motion ends the robots' approach.
        """
        count = self._standstill
        stands = progress[:, 0] < STANDSTILL
        count.copy_(torch.where(stands, count + 1, count.clamp(min=0)))
        is_slow = (progress[:, 1] < SLOW) & (count >= 0)
        self._slow.copy_(torch.where(is_slow, self._slow + 1, 0))
        return stands

    def _update_plan(self, position: Tensor, mask: Tensor | None = None) -> None:
        """Plan from ``position`` (N, 2), in the worlds of ``mask`` alone."""
        self._update_problems(self._everywhere if mask is None else mask)
        cost_to_go = self._cost_to_go(position).unsqueeze(1)
        shortest = self._shortest[self._map_index].unsqueeze(1)
        _, rows = self._problem_of(self._followed)
        planned = self._follower.subgoal(position, rows)
        subgoal = self._plan.subgoal
        past = torch.lerp(self._plan.past_cost, cost_to_go, self._forgetting)
        if self._sways and mask is None:
            stands = self._count_standstill(past - cost_to_go)
            planned = swayed(planned, position, self._standstill * stands)
            planned = turned(planned, position, self._slow)
        if mask is not None:
            subgoal = torch.where(mask.unsqueeze(1), planned, subgoal)
            past = cost_to_go.expand_as(past)
        values = torch.cat((planned, subgoal, cost_to_go, shortest, past), dim=1)
        if mask is not None:
            values = torch.where(mask.unsqueeze(1), values, self.memory)
            if self._last_cost is not None:
                cost = torch.where(mask, cost_to_go[:, 0], self._last_cost)
                self._last_cost.copy_(cost)
        self.memory.copy_(values)

    def _update_problems(self, mask: Tensor) -> None:
        """Update the live problems in the worlds of ``mask``."""
        for problem in dict.fromkeys((self._measured, self._followed)):
            if problem is not None:
                problem.update(self._map_index, self._time, mask)

    def _problem_of(self, present: LiveProblem | None) -> tuple[Problem, Tensor]:
        """Return the ``present`` problem, by default the maps' own, and each world's row (N,) in
        it.
        """
        if present is None:
            return self.constants.problem, self._map_index
        return present.problem, present.worlds

    def _cost_to_go(self, position: Tensor) -> Tensor:
        """Return the cost-to-go (N,) for objects at ``position`` (N, 2)."""
        problem, rows = self._problem_of(self._measured)
        return problem.grid.look_up(problem.value, rows, position)

    def planned_way(self, world: int) -> Tensor:
        """Return one world's planned way (P, 2) [m] from the sub-goal to the goal.

        Each point is the planner's sub-goal for an object at the point before. For pictures: it
        waits for the device.
        """
        _, index = self._problem_of(self._followed)
        goal = self._goal[world : world + 1]
        way = [self._plan.planned[world : world + 1]]
        while len(way) < _LONGEST_WAY and bool(length(goal - way[-1]) > _NEAR_GOAL):
            places = way[-1].expand(len(index), -1)
            way.append(self._follower.subgoal(places, index)[world : world + 1])
        return torch.cat(way)

    @property
    def features(self) -> TaskFeatures:
        """Hooks for the planner's goals and pictures, the marker and blocks for frozen networks."""
        return super().features._replace(
            set_goal=self.set_goal,
            moved_props=self.moved_props,
            use_blocks=self._team.use_blocks,
            success_radius=self.cfg.success_radius,
            shown_plan=ShownPlan(self.planned_way, self.cost_cells),
        )

    def cost_cells(self, world: int) -> Tensor:
        """Return cells (C, 5) of one world's cost-to-go with room for the object: x, y and half
        their lengths [m], and the cost over the highest cost.

        For pictures: it waits for the device.
        """
        problem, rows = self._problem_of(self._followed)
        distance, _, value = problem.fields[rows[world]]
        fields = (*problem.grid.centers.unbind(dim=-1), distance, value)
        coarse = torch.nn.functional.avg_pool2d(torch.stack(fields), _SHOWN_CELL)
        x, y, distance, value = coarse.flatten(1)
        is_free = distance > problem.reach
        share = value / value[is_free].amax().clamp(min=1e-6)
        half_x, half_y = (0.5 * _SHOWN_CELL * length for length in problem.grid.cell)
        size = (torch.full_like(x, half_x), torch.full_like(x, half_y))
        return torch.stack((x, y, *size, share), dim=1)[is_free]

    def set_goal(self, goal: Tensor, mask: Tensor) -> bool:
        """Lead the team to ``goal`` (N, 2) in the coming decision, in place of the planner's
        sub-goal.
        """
        self._plan.planned.copy_(torch.where(mask.unsqueeze(1), goal, self._plan.planned))
        return False

    def command(self, actions: Tensor) -> None:
        """Take actions (N, 1, 2) in [-1, 1]. The first in a decision counts."""
        if self._age > 0:
            return
        self._action.copy_(actions[:, 0])

    def targets(self, state: SceneState) -> Tensor:
        """Return joint targets (N, A, J) [rad] for the team on its way to the sub-goal."""
        if self._age == 0:
            subgoal = self._plan.subgoal
            subgoal.copy_(self._chosen_subgoal(state))
            self._team.command(subgoal)
        self._age += 1
        if self._steps is not None:
            self._steps += 1
        return self._team.targets(state)

    def _chosen_subgoal(self, state: SceneState) -> Tensor:
        """Return the last actions' sub-goals (N, 2) [m]."""
        choose = ACTIONS[self.cfg.actions]
        position = state.object_pos[:, :2]
        arena = self.constants.problem.arena
        return choose(self._action, self._plan.planned, position, self.cfg, arena)

    @property
    def _time(self) -> Tensor:
        """Return each episode's time (N,) [s], 0 on maps without movement."""
        return torch.zeros_like(self._cost) if self._steps is None else STEP_DT * self._steps

    @property
    def _goal(self) -> Tensor:
        """Return the present goals (N, 2) [m]."""
        return self._maps.goal_at(self._map_index, self._time)

    def moved_props(self) -> MovedProps | None:
        """Return the present obstacles and goals, and the marker at a new sub-goal."""
        if self._age != 1 and self._steps is None:
            return None
        marker = torch.nn.functional.pad(self._plan.subgoal, (0, 1)).unsqueeze(1)
        if self._steps is None:
            obstacles = self._maps.obstacle_pos[self._map_index]
            return MovedProps(torch.cat((obstacles, marker), dim=1))
        goal = torch.nn.functional.pad(self._goal, (0, 1))
        obstacles = self._maps.obstacles_at(self._map_index, self._time)
        velocity = None
        if self._maps.has_movers:
            before = self._maps.obstacles_at(self._map_index, self._time - STEP_DT)
            velocity = (obstacles - before)[..., :2] / STEP_DT
        return MovedProps(torch.cat((obstacles, marker), dim=1), velocity, goal)

    def evaluate(self, state: SceneState, prev: SceneState) -> Outcome:
        """Judge a control step, and plan at a decision's end."""
        outcome = super().evaluate(state, prev)
        if self._last_cost is not None:
            self._last_cost.copy_(self._cost)
        if self._age == self.decision_period:
            self._age = 0
            if self._followed is not None:
                self._followed.see(state)
            self._update_plan(state.object_pos[:, :2])
        return outcome

    def scene_features(self, state: SceneState, memory: Tensor) -> SceneFeatures:
        """Return the observed features in any W worlds."""
        return SceneFeatures(state, memory, self.constants)

    def step_features(self, state: SceneState, prev: SceneState) -> StepFeatures:
        """Return the features for the control step from ``prev`` to ``state``."""
        features = StepFeatures(
            state, prev, self.memory, self.constants, self._map_index, self._collapse
        )
        if self._last_cost is not None:
            self._cost = self._cost_to_go(state.object_pos[:, :2])
            # Goals move as well: what they add to the cost and take from it is part of the sum.
            features.progress = self._last_cost - self._cost
        return features

    def episode_features(
        self, sums: Tensor, steps: Tensor, terminated: Terminated
    ) -> NavigateEpisodes:
        """Return the features for finished episodes."""
        features = NavigateEpisodes(sums, steps, terminated, self.terms.measures)
        features.success_radius = self.cfg.success_radius
        features.leg = self.cfg.look_ahead
        return features

    def state_dict(self) -> dict[str, Any]:
        """Return the memory of features and terms, and the team's."""
        return {"team": self._team.state_dict(), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self._team.load_state_dict(state["team"])
        super().load_state_dict(state)
        self._update_problems(self._everywhere)
