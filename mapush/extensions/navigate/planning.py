"""The plans of a navigation task: its sub-goals, and pictures of them."""

import torch
from torch import Tensor

from mapush.extensions.navigate.features import PAST, NavigateConstants, Plan
from mapush.extensions.navigate.planners.entries import PLANNERS
from mapush.extensions.navigate.planners.followers import APPROACH, SLOW, STANDSTILL, swayed, turned
from mqe.tasks.terms import Memory
from mqe.world.geometry import length
from mqe.world.scene import STEP_DT
from mqe.world.state import overwrite

_LONGEST_WAY = 64  # points of a way that is drawn
_NEAR_GOAL = 0.1  # [m] from the goal to the last point of that way


class Planning:
    """N worlds' maps and plans."""

    def __init__(self, constants: NavigateConstants, memory: Memory) -> None:
        """Plan on the maps of ``constants``, and store in ``memory``."""
        cfg = constants.cfg
        self._problem = constants.problem
        self.maps = constants.problem.maps
        self.map_index = memory.remember("map_index", start=None, dtype=torch.int64)
        # Decisions of each episode in which the object stood still, but for the robots' approach.
        self._standstill = memory.remember("standstill", start=-APPROACH, dtype=torch.int64)
        # Decisions in a row in which it was slow, but moved.
        self._slow = memory.remember("slow", dtype=torch.int64)
        self.values = memory.remember("plan", Plan.SIZE, start=None)
        self.plan = Plan.of(self.values)
        past = torch.tensor(PAST, device=self.maps.goal.device)
        self._forgetting = 1.0 - (-STEP_DT * cfg.decision_period / past).exp()
        planner = PLANNERS.find(cfg.planner, "task.planner")
        self._follower = planner.follow(self._problem)
        self._sways = planner.sways

    def begin(self, index: Tensor, start: Tensor, mask: Tensor) -> None:
        """Begin on maps ``index`` (N,) at ``start`` (N, 2) in the worlds of ``mask`` (N,)."""
        overwrite(self.map_index, mask, index)
        planned = self.next_subgoal(start)
        cost_to_go = self.cost_to_go(start).unsqueeze(1)
        past = cost_to_go.expand_as(self.plan.past_cost)
        values = self._values(planned, planned, cost_to_go, past)
        overwrite(self.values, mask, values)

    def update(self, position: Tensor) -> None:
        """Plan from ``position`` (N, 2)."""
        cost_to_go = self.cost_to_go(position).unsqueeze(1)
        planned = self.next_subgoal(position)
        past = torch.lerp(self.plan.past_cost, cost_to_go, self._forgetting)
        if self._sways:
            stands = self._count_standstill(past - cost_to_go)
            planned = swayed(planned, position, self._standstill * stands)
            planned = turned(planned, position, self._slow)
        self.values.copy_(self._values(planned, self.plan.subgoal, cost_to_go, past))

    def next_subgoal(self, position: Tensor) -> Tensor:
        """Return the planner's sub-goals (N, 2) [m] for objects at ``position`` (N, 2)."""
        return self._follower.subgoal(position, self.map_index)

    def cost_to_go(self, position: Tensor) -> Tensor:
        """Return the cost-to-go (N,) for objects at ``position`` (N, 2)."""
        return self._problem.cost_to_go(self.map_index, position)

    def way(self, world: int) -> Tensor:
        """Return one world's planned path (P, 2) [m] from the sub-goal to the goal.

        Each point is the planner's sub-goal for an object at the point before. For pictures: this
        waits for the device.
        """
        goal = self.maps.goal[self.map_index[world : world + 1]]
        way = [self.plan.planned[world : world + 1]]
        while len(way) < _LONGEST_WAY and bool(length(goal - way[-1]) > _NEAR_GOAL):
            position = way[-1].expand(len(self.map_index), -1)
            way.append(self.next_subgoal(position)[world : world + 1])
        return torch.cat(way)

    def _values(self, planned: Tensor, subgoal: Tensor, cost: Tensor, past: Tensor) -> Tensor:
        """Return the values of a ``Plan`` (N, 8)."""
        shortest = self._problem.shortest[self.map_index].unsqueeze(1)
        return torch.cat((planned, subgoal, cost, shortest, past), dim=1)

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
