"""Lines of sight in the plane: field of view, range and occlusion.

N worlds, A robots, T targets per robot, B bodies (the robots, then the object). A pose (..., 4) is
x, y [m] and the heading's unit vector. Every robot has its own view (N, A, B, 4) on the scene, from
its last frame.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from mqe.world.geometry import axes_along, crosses_box, dot, in_frame, length, turned
from mqe.world.objects import Footprint
from mqe.world.robots import Robots


class Sensor(NamedTuple):
    """One sensor per world and robot."""

    origin: Tensor  # (N, A, 2) [m]
    axis: Tensor  # (N, A, 2) unit vector
    cosine: Tensor  # (N, A) of half the field of view
    nearest: float  # [m]
    furthest: float  # [m]

    def covers(self, targets: Tensor) -> Tensor:
        """Return a mask (N, A, T): field of view and range contain the targets (N, A, T, 2)."""
        ray = targets - self.origin.unsqueeze(2)
        distance = length(ray)
        ahead = dot(ray, self.axis.unsqueeze(2))
        is_in_view = ahead >= distance * self.cosine.unsqueeze(2) - 1e-6
        return is_in_view & (distance >= self.nearest) & (distance <= self.furthest)


class Trunks:
    """The robots' trunks as rectangles, seen from above."""

    def __init__(self, robots: Robots) -> None:
        """Read the rectangles from the robots' shapes."""
        corners = torch.stack([_corners(cfg.trunk_shapes) for cfg in robots.cfgs])
        low, high = corners.to(robots.device).unbind(dim=1)
        self.half_size = 0.5 * (high - low)  # (A, 2) [m]
        self.center = 0.5 * (high + low)  # (A, 2) [m] trunk frame
        self.length = float((high - low)[:, 0].min())  # [m] of the shortest

    def marks(self, poses: Tensor) -> Tensor:
        """Return each trunk's middle, nose and tail (N, A, B, 3, 2) for poses (N, A, B, 4)."""
        origin, ahead = poses.split(2, dim=-1)
        reach = self.half_size[:, :1] * ahead
        middle = origin + turned(self.center, ahead)
        return torch.stack((middle, middle + reach, middle - reach), dim=-2)

    def are_crossed(self, start: Tensor, targets: Tensor, poses: Tensor) -> Tensor:
        """Return a mask (N, A, T, B): the line from ``start`` (N, A, 2) to a target (N, A, T, 2)
        crosses a trunk with a pose (N, A, B, 4).
        """
        origin, ahead = poses.unsqueeze(2).split(2, dim=-1)
        frames = axes_along(ahead)
        start_b = in_frame(start[:, :, None, None] - origin, frames) - self.center
        way = in_frame((targets - start.unsqueeze(2)).unsqueeze(3), frames)
        return crosses_box(start_b, way, self.half_size)


class Views:
    """Visibility from each robot: the object's outline, and the other robots."""

    def __init__(self, footprint: Footprint, robots: Robots, observed: Tensor) -> None:
        """Look at bodies ``observed`` (A, A): the object, then each robot's others."""
        self.trunks = Trunks(robots)
        self._footprint = footprint
        self._others = observed[:, 1:]
        trunks = torch.arange(len(robots), device=robots.device)
        self._row = trunks.unsqueeze(1)
        marked = self._others.repeat_interleave(3, dim=1)
        targets = pad(marked, (footprint.points.shape[1], 0), value=-1).unsqueeze(-1)
        # (A, T, A): neither the robot's trunk nor the target's hides a target.
        self._may_hide = (trunks != self._row.unsqueeze(1)) & (trunks != targets)

    def __call__(self, sensor: Sensor, poses: Tensor) -> tuple[Tensor, Tensor]:
        """Return masks for visible outline points (N, A, P) and visible others (N, A, A - 1).

        A robot is visible by its trunk's middle, nose or tail.
        """
        robots, thing = poses.split((len(self._row), 1), dim=2)
        origin, ahead = thing.split(2, dim=-1)
        points = origin + turned(self._footprint.points_of(len(poses)).unsqueeze(1), ahead)
        marks = self.trunks.marks(robots)[:, self._row, self._others].flatten(2, 3)
        targets = torch.cat((points, marks), dim=2)

        frames = axes_along(ahead)
        starts = in_frame(sensor.origin.unsqueeze(2) - origin, frames).expand_as(targets)
        ends = in_frame(targets - origin, frames)
        is_hidden = self._footprint.is_crossed(starts.flatten(1, 2), ends.flatten(1, 2))
        crossed = self.trunks.are_crossed(sensor.origin, targets, robots)
        is_hidden = is_hidden.view_as(crossed[..., 0]) | (crossed & self._may_hide).any(dim=-1)
        is_visible = sensor.covers(targets) & ~is_hidden
        outline, others = is_visible.tensor_split((points.shape[2],), dim=2)
        return outline, others.unflatten(2, (-1, 3)).any(dim=-1)


def _corners(shapes: Sequence[Any]) -> Tensor:
    """Return the lowest and the highest corner (2, 2) [m] around a trunk's shapes, trunk frame."""
    centers = torch.tensor([shape.pos[:2] for shape in shapes])
    # A sphere has one size, its radius.
    reaches = torch.tensor([(shape.size * 2)[:2] for shape in shapes])
    return torch.stack(((centers - reaches).amin(dim=0), (centers + reaches).amax(dim=0)))
