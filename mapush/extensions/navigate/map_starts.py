"""Initial layouts of navigation episodes: the object's position from the map, robots around the
object.
"""

import torch
from torch import Tensor

from mapush.extensions.navigate.planners.problem import Problem
from mqe.tasks.push.layouts import PushLayouts
from mqe.world.geometry import quat_from_yaw
from mqe.world.layout import Layout
from mqe.world.streams import Streams

_BEHIND = 0.25  # [m] between the object's furthest corner and the robots of a row behind it
_SPACING = 0.9  # [m] between the robots of a row


class MapStarts:
    """Draws initial layouts on maps. Robots stand around the object, or in a row behind it."""

    def __init__(self, problem: Problem, layouts: PushLayouts, streams: Streams) -> None:
        """Take the robots' positions round an object from ``layouts``."""
        self._maps = problem.maps
        self._layouts = layouts
        self._streams = streams
        # A row of A robots behind an object at the origin, facing along x
        count = layouts.num_agents
        left = _SPACING * (torch.arange(count, device=problem.maps.goal.device) - 0.5 * (count - 1))
        behind = torch.full_like(left, -problem.reach - _BEHIND)
        self._row = torch.stack((behind, left), dim=-1)  # (A, 2) [m]
        self._row_quat = quat_from_yaw(torch.zeros_like(left))  # (A, 4)

    def draw(self, episode: Tensor) -> tuple[Layout, Tensor, Tensor]:
        """Return the layout, the maps (N,) and the object's initial positions (N, 2) [m] of
        episodes (N,).
        """
        maps = self._maps
        index = torch.remainder(self._streams.numbers + episode, len(maps.goal))
        start = maps.start[index]

        drawn = self._layouts.draw(self._streams, episode)
        shift = torch.nn.functional.pad(start, (0, 1))
        yaw = maps.start_yaw[index]
        is_drawn = yaw.isnan().unsqueeze(1)
        object_quat = torch.where(is_drawn, drawn.object_quat, quat_from_yaw(yaw.nan_to_num()))
        is_behind = maps.is_behind[index]
        height = drawn.robot_pos[..., 2:]
        behind = torch.cat((self._row.expand(len(index), -1, -1), height), dim=-1)
        is_in_row = is_behind.view(-1, 1, 1)
        layout = drawn._replace(
            robot_pos=torch.where(is_in_row, behind, drawn.robot_pos) + shift.unsqueeze(1),
            robot_quat=torch.where(is_in_row, self._row_quat, drawn.robot_quat),
            object_pos=drawn.object_pos + shift,
            object_quat=object_quat,
            goal_pos=torch.nn.functional.pad(maps.goal[index], (0, 1)),
            obstacle_pos=maps.obstacle_pos[index],
            obstacle_quat=quat_from_yaw(maps.obstacle_yaw[index]),
        )
        return layout, index, start
