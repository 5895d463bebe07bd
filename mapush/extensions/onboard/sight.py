"""Lines of sight in the plane: field of view, range and occlusion.

N worlds, A robots, T targets of each robot, B bodies (the robots, then the object). A pose (..., 4)
is x, y [m] and the unit vector of the heading. Every robot has its own view (N, A, B, 4) of the
scene, taken at the time of its last frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mqe.world.geometry import axes_along, crosses_box, in_frame, length
from mqe.world.objects import Footprint
from mqe.world.robots import Robots


class Sensor(NamedTuple):
    """A sensor in each world and robot."""

    place: Tensor  # (N, A, 2) [m]
    axis: Tensor  # (N, A, 2) unit vector
    cosine: Tensor  # (N, A) of half the field of view
    nearest: float  # [m]
    furthest: float  # [m]

    def covers(self, targets: Tensor) -> Tensor:
        """Return a mask (N, A, T) of targets (N, A, T, 2) within field of view and range."""
        ray = targets - self.place.unsqueeze(2)
        distance = length(ray)
        ahead = (ray * self.axis.unsqueeze(2)).sum(dim=-1)
        is_in_view = ahead >= distance * self.cosine.unsqueeze(2) - 1e-6
        return is_in_view & (distance >= self.nearest) & (distance <= self.furthest)


class Trunks:
    """The robots' trunks as rectangles, seen from above."""

    def __init__(self, robots: Robots) -> None:
        """Read the rectangles from the robots' shapes."""
        boxes = [_rectangle(cfg.trunk_shapes) for cfg in robots.cfgs]
        low, high = torch.tensor(boxes, device=robots.device).unbind(dim=1)
        self.half_size = 0.5 * (high - low)  # (A, 2) [m]
        self.center = 0.5 * (high + low)  # (A, 2) [m] trunk frame
        self.length = float((high - low)[:, 0].min())  # [m] of the shortest

    def marks(self, poses: Tensor) -> Tensor:
        """Return each trunk's middle, nose and tail (N, A, B, 3, 2) for poses (N, A, B, 4)."""
        place, ahead = poses.split(2, dim=-1)
        reach = self.half_size[:, :1] * ahead
        middle = place + _turned(self.center, ahead)
        return torch.stack((middle, middle + reach, middle - reach), dim=-2)

    def are_crossed(self, start: Tensor, targets: Tensor, poses: Tensor) -> Tensor:
        """Return a mask (N, A, T, B) of lines from ``start`` (N, A, 2) to ``targets`` (N, A, T, 2)
        through trunks at ``poses`` (N, A, B, 4).
        """
        place, ahead = poses.unsqueeze(2).split(2, dim=-1)
        frames = axes_along(ahead)
        start_b = in_frame(start[:, :, None, None] - place, frames) - self.center
        way = in_frame((targets - start.unsqueeze(2)).unsqueeze(3), frames)
        return crosses_box(start_b, way, self.half_size)


class Views:
    """What each robot's sensor sees of the object's outline and of the other robots."""

    def __init__(self, footprint: Footprint, robots: Robots, observed: Tensor) -> None:
        """Look at bodies ``observed`` (A, A): the object, then the others of each robot."""
        num_robots = len(robots)
        self.trunks = Trunks(robots)
        self._footprint = footprint
        self._others = observed[:, 1:]
        self._row = torch.arange(num_robots, device=robots.device).unsqueeze(1)
        num_points = footprint.points.shape[1]
        # (A, T, A) trunks that may stand in the way: neither the robot's nor the target's.
        body = torch.arange(num_robots, device=robots.device)
        target = torch.cat(
            (
                torch.full((num_robots, num_points), -1, device=robots.device),
                self._others.repeat_interleave(3, dim=1),
            ),
            dim=1,
        )
        is_own = body == body.view(-1, 1, 1)
        self._is_in_the_way = ~is_own & (body != target.unsqueeze(-1))

    def __call__(self, sensor: Sensor, poses: Tensor) -> tuple[Tensor, Tensor]:
        """Return visible points of the outline (N, A, P) and visible others (N, A, A - 1), both
        bool.

        Another robot is visible if the middle, the nose or the tail of its trunk is.
        """
        num_robots = poses.shape[1]
        bodies = poses[:, :, num_robots]
        place, ahead = bodies.unsqueeze(2).split(2, dim=-1)
        outline = self._footprint.points_of(len(poses)).unsqueeze(1)
        points = place + _turned(outline, ahead)
        num_points = points.shape[2]
        robots = poses[:, :, :num_robots]
        marks = self.trunks.marks(robots)[:, self._row, self._others].flatten(2, 3)
        targets = torch.cat((points, marks), dim=2)

        frames = axes_along(ahead)
        starts = in_frame(sensor.place.unsqueeze(2) - place, frames).expand_as(targets)
        ends = in_frame(targets - place, frames)
        is_hidden = self._footprint.is_crossed(starts.flatten(1, 2), ends.flatten(1, 2))
        is_hidden = is_hidden.view(targets.shape[:-1])
        if num_robots > 1:
            crossed = self.trunks.are_crossed(sensor.place, targets, robots)
            is_hidden = is_hidden | (crossed & self._is_in_the_way).any(dim=-1)
        is_visible = sensor.covers(targets) & ~is_hidden
        visible_marks = is_visible[:, :, num_points:].unflatten(2, (num_robots - 1, 3))
        return is_visible[:, :, :num_points], visible_marks.any(dim=-1)


def _turned(points: Tensor, ahead: Tensor) -> Tensor:
    """Return points (..., 2) turned from a frame with x axis ``ahead`` (..., 2) into the world's.

    The two broadcast.
    """
    x, y = points.split(1, dim=-1)
    left = torch.stack((-ahead[..., 1], ahead[..., 0]), dim=-1)
    return x * ahead + y * left


def _rectangle(shapes: Sequence[object]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the corners of the smallest rectangle around a trunk's shapes, trunk frame [m]."""
    low = [0.0, 0.0]
    high = [0.0, 0.0]
    for shape in shapes:
        for axis in range(2):
            reach = shape.size[axis] if shape.type == "box" else shape.size[0]  # type: ignore[attr-defined]
            low[axis] = min(low[axis], shape.pos[axis] - reach)  # type: ignore[attr-defined]
            high[axis] = max(high[axis], shape.pos[axis] + reach)  # type: ignore[attr-defined]
    return (low[0], low[1]), (high[0], high[1])
