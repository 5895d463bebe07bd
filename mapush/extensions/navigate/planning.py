"""The plans of a navigation task: its problems, sub-goals, and pictures of both."""

from __future__ import annotations

import torch
from torch import Tensor

from mapush.extensions.navigate.features import PAST, NavigateConstants, Plan
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
from mqe.tasks.terms import Memory
from mqe.world.geometry import length
from mqe.world.scene import STEP_DT
from mqe.world.state import SceneState

_LONGEST_WAY = 64  # points of a way that is drawn
_NEAR_GOAL = 0.1  # [m] from the goal to the last point of that way
_SHOWN_CELL = 3  # cells of the planner's grid along a side of one that is drawn


class Planning:
    """N worlds' maps, episode times and plans."""

    def __init__(
        self,
        constants: NavigateConstants,
        shortest: Tensor,
        memory: Memory,
        num_envs: int,
    ) -> None:
        """Plan on maps with shortest paths ``shortest`` (L,) [m], and store in ``memory``. L is the
        number of maps.
        """
        cfg = constants.cfg
        maps = constants.problem.maps
        device = maps.goal.device
        self.maps = maps
        self._problem = constants.problem
        self._look_ahead = cfg.look_ahead
        self._shortest = shortest
        self._memory = memory
        is_live = maps.has_movers or maps.has_moving_goals
        self._moving = MovingProblem(constants.problem, num_envs) if is_live else None
        self.map_index = memory.remember("map_index", start=None, dtype=torch.int64)
        # Control steps of each episode.
        self._steps = memory.remember("steps", dtype=torch.int64) if is_live else None
        # The cost-to-go after the last control step, for moving goals.
        self.last_cost = memory.remember("last_cost", start=None) if maps.has_moving_goals else None
        # Decisions of each episode in which the object stood still, but for the robots' approach.
        self._standstill = memory.remember("standstill", start=-APPROACH, dtype=torch.int64)
        # Decisions in a row in which it was slow, but moved.
        self._slow = memory.remember("slow", dtype=torch.int64)
        self.values = memory.remember("plan", Plan.SIZE, start=None)
        self.plan = Plan.of(self.values)
        past = torch.tensor(PAST, device=device)
        self._forgetting = 1.0 - (-STEP_DT * cfg.decision_period / past).exp()
        self._everywhere = torch.ones(num_envs, dtype=torch.bool, device=device)
        self._follower: Follower
        self.use_planner(cfg.planner)

    @property
    def is_live(self) -> bool:
        """Whether obstacles or goals move."""
        return self._steps is not None

    @property
    def time(self) -> Tensor:
        """Return each episode's time (N,) [s], 0 on maps without movement."""
        if self._steps is None:
            return torch.zeros(len(self.map_index), device=self.values.device)
        return STEP_DT * self._steps

    @property
    def goal(self) -> Tensor:
        """Return the present goals (N, 2) [m]."""
        return self.maps.goal_at(self.map_index, self.time)

    def use_planner(self, name: str) -> None:
        """Plan with the planner of this name from the next decision on."""
        planner = PLANNERS.find(name, "task.planner")
        replans = planner.replans or self.maps.has_moving_goals
        # Problems that change: of the cost-to-go, and of the planner.
        self._measured: LiveProblem | None = self._moving if replans else None
        self.followed: LiveProblem | None = self._moving if planner.replans else None
        if planner.explores:
            self.followed = SeenProblem(self._problem, len(self.map_index), self._memory)
        problem, _ = self._problem_of(self.followed)
        self._follower = planner.follow(problem, self._look_ahead)
        self._sways = planner.sways

    def count_step(self) -> None:
        """Add a control step to the episodes' times."""
        if self._steps is not None:
            self._steps += 1

    def begin(self, index: Tensor, start: Tensor, mask: Tensor) -> None:
        """Begin on maps ``index`` (N,) at ``start`` (N, 2) in the worlds of ``mask`` (N,)."""
        self.map_index.copy_(torch.where(mask, index, self.map_index))
        self.update(start, mask)

    def see(self, state: SceneState) -> None:
        """Add the obstacles in sight at a decision's end."""
        if self.followed is not None:
            self.followed.see(state)

    def update(self, position: Tensor, mask: Tensor | None = None) -> None:
        """Plan from ``position`` (N, 2), in the worlds of ``mask`` alone."""
        self.update_problems(mask)
        cost_to_go = self.cost_to_go(position).unsqueeze(1)
        shortest = self._shortest[self.map_index].unsqueeze(1)
        planned = self.next_subgoal(position)
        subgoal = self.plan.subgoal
        past = torch.lerp(self.plan.past_cost, cost_to_go, self._forgetting)
        if self._sways and mask is None:
            stands = self._count_standstill(past - cost_to_go)
            planned = swayed(planned, position, self._standstill * stands)
            planned = turned(planned, position, self._slow)
        if mask is not None:
            subgoal = torch.where(mask.unsqueeze(1), planned, subgoal)
            past = cost_to_go.expand_as(past)
        values = torch.cat((planned, subgoal, cost_to_go, shortest, past), dim=1)
        if mask is not None:
            values = torch.where(mask.unsqueeze(1), values, self.values)
            if self.last_cost is not None:
                cost = torch.where(mask, cost_to_go[:, 0], self.last_cost)
                self.last_cost.copy_(cost)
        self.values.copy_(values)

    def update_problems(self, mask: Tensor | None = None) -> None:
        """Update the live problems, in the worlds of ``mask`` alone."""
        if mask is None:
            mask = self._everywhere
        for problem in dict.fromkeys((self._measured, self.followed)):
            if problem is not None:
                problem.update(self.map_index, self.time, mask)

    def next_subgoal(self, position: Tensor) -> Tensor:
        """Return the planner's sub-goals (N, 2) [m] for objects at ``position`` (N, 2)."""
        _, rows = self._problem_of(self.followed)
        return self._follower.subgoal(position, rows)

    def cost_to_go(self, position: Tensor) -> Tensor:
        """Return the cost-to-go (N,) for objects at ``position`` (N, 2)."""
        problem, rows = self._problem_of(self._measured)
        return problem.grid.look_up(problem.value, rows, position)

    def way(self, world: int) -> Tensor:
        """Return one world's planned path (P, 2) [m] from the sub-goal to the goal.

        Each point is the planner's sub-goal for an object at the point before. For pictures: this
        waits for the device.
        """
        goal = self.goal[world : world + 1]
        way = [self.plan.planned[world : world + 1]]
        while len(way) < _LONGEST_WAY and bool(length(goal - way[-1]) > _NEAR_GOAL):
            position = way[-1].expand(len(self.map_index), -1)
            way.append(self.next_subgoal(position)[world : world + 1])
        return torch.cat(way)

    def cost_cells(self, world: int) -> Tensor:
        """Return cells (C, 5) of one world's cost-to-go with room for the object: x, y and
        half-extents [m], and the cost over the highest cost.

        For pictures: this waits for the device.
        """
        problem, rows = self._problem_of(self.followed)
        distance, _, value = problem.fields[rows[world]]
        fields = (*problem.grid.centers.unbind(dim=-1), distance, value)
        coarse = torch.nn.functional.avg_pool2d(torch.stack(fields), _SHOWN_CELL)
        x, y, distance, value = coarse.flatten(1)
        is_free = distance > problem.reach
        share = value / value[is_free].amax().clamp(min=1e-6)
        half_x, half_y = (0.5 * _SHOWN_CELL * length for length in problem.grid.cell)
        size = (torch.full_like(x, half_x), torch.full_like(x, half_y))
        return torch.stack((x, y, *size, share), dim=1)[is_free]

    def _count_standstill(self, progress: Tensor) -> Tensor:
        """Count standing and slow decisions, and return a mask (N,) of standing objects.

        ``progress`` (N, 2) [m] is the averages of the cost-to-go minus the cost-to-go. An object's
        first motion ends the robots' approach.
        """
        count = self._standstill
        stands = progress[:, 0] < STANDSTILL
        count.copy_(torch.where(stands, count + 1, count.clamp(min=0)))
        is_slow = (progress[:, 1] < SLOW) & (count >= 0)
        self._slow.copy_(torch.where(is_slow, self._slow + 1, 0))
        return stands

    def _problem_of(self, present: LiveProblem | None) -> tuple[Problem, Tensor]:
        """Return the ``present`` problem, by default the maps' own, and each world's row (N,) in
        it.
        """
        if present is None:
            return self._problem, self.map_index
        return present.problem, present.worlds
