"""The perception model of ``task.senses.name=onboard`` in NumPy: frames, occlusion, odometry.

The occlusion is by boxes seen from above. Missing detections do not come in bursts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onboard_memory import Memory, Pose, composed, relative

RATE = (5.0, 15.0)  # [Hz] frames
LATENCY = (0.05, 0.15)  # [s] from a frame to its detections
DROPOUT = (0.0, 0.2)  # fraction of missing detections, here without bursts
NOISE = (0.03, 0.03, 0.05)  # [m, m, rad] of one detection
BIAS = (0.03, 0.03, 0.03)  # [m, m, rad] in an episode
DRIFT = (0.02, 0.02, 0.002)  # of the distance walked: along, across, heading [rad/m]
GRAZE = 0.005  # [m] depth in a body below which a line of sight only grazes it
ROOM = (0.0, 0.0, 0.0)  # frame of the odometry
LEAST_POINTS = 2  # of the outline, in a detection of the object


class Sensor:
    """Frames, detections and odometry of one robot in one episode."""

    def __init__(self, name: str, others: list[str], view: Any, draw: np.random.Generator) -> None:
        """See ``view.field_of_view`` [rad] and ``view.sight`` [m], with errors from ``draw``.

        A range of fields of view has another one in each episode.
        """
        self.memory = Memory(others, view.memory_time)
        self._name = name
        self._others = others
        self._view = view
        self._draw = draw
        self._half_view = 0.5 * draw.uniform(*np.broadcast_to(view.field_of_view, 2))
        self._period = 1.0 / draw.uniform(*RATE)
        self._latency = draw.uniform(*LATENCY)
        self._dropout = draw.uniform(*DROPOUT)
        self._bias = {body: draw.uniform(-1, 1, 3) * BIAS for body in ("object", *others)}
        self._drift = draw.uniform(-1, 1, 3) * DRIFT
        self._next = draw.uniform(0.0, self._period)
        self._arriving: list[tuple[float, float, dict[str, Pose]]] = []
        self._true: Pose | None = None
        self._believed: Pose = (0.0, 0.0, 0.0)

    def update(self, time: float, poses: dict[str, Pose], outline: np.ndarray, boxes: dict) -> None:
        """Take the true scene after a control step: poses, outline points (P, 2), and boxes."""
        self._walk(poses[self._name])
        self.memory.move(time, self._believed)
        if time >= self._next:
            self._next += self._period
            seen = self._detections(poses, outline, boxes)
            self._arriving.append((time + self._latency, time, seen))
        while self._arriving and self._arriving[0][0] <= time:
            _, seen_at, seen = self._arriving.pop(0)
            self.memory.detect(seen_at, seen)

    def _walk(self, pose: Pose) -> None:
        """Add a displacement to the odometry, with its drift. It begins at the true pose."""
        if self._true is None:
            self._believed = pose
        else:
            x, y, turn = relative(self._true, pose)
            along, across, heading = self._drift
            step = (x + along * x - across * y, y + along * y + across * x)
            self._believed = composed(self._believed, (*step, turn + math.hypot(x, y) * heading))
        self._true = pose

    def _detections(self, poses: dict[str, Pose], outline: np.ndarray, boxes: dict) -> dict:
        """Return the detected bodies' poses in the robot's frame, with errors."""
        robot = poses[self._name]
        in_sight = np.flatnonzero(self._sees(robot, outline, boxes, {self._name}))
        visible = ["object"] if len(in_sight) >= LEAST_POINTS else []
        for body in self._others:
            reach = boxes[body][0][2][0]
            marks = [composed(poses[body], (x, 0.0, 0.0))[:2] for x in (0.0, reach, -reach)]
            if self._sees(robot, np.array(marks), boxes, {self._name, body}).any():
                visible.append(body)
        seen = {}
        for body in visible:
            if self._draw.uniform() >= self._dropout:
                error = self._bias[body] + self._draw.normal(size=3) * NOISE
                seen[body] = tuple(relative(robot, poses[body]) + error)
        if "object" in seen:
            for k in in_sight:
                point = relative(poses["object"], (*outline[k], 0.0))
                seen[f"outline{k}"] = composed(seen["object"], point)
        return seen

    def _sees(self, robot: Pose, points: np.ndarray, boxes: dict, but: set[str]) -> np.ndarray:
        """Return a mask (P,): the robot sees ``points`` (P, 2) past the boxes of bodies."""
        start = np.array(robot[:2])
        ways = points - start
        distance = np.linalg.norm(ways, axis=1)
        ahead = ways @ (math.cos(robot[2]), math.sin(robot[2]))
        nearest, furthest = self._view.sight
        is_seen = ahead >= distance * math.cos(self._half_view) - 1e-6
        is_seen &= (distance >= nearest) & (distance <= furthest)
        for body in boxes.keys() - but:
            for center, axes, half in boxes[body]:
                is_seen &= ~_crosses((start - center) @ axes, ways @ axes, half - GRAZE)
        return is_seen


class MotionCapture:
    """Cameras over the room, for a team with exact observations: every pose, without errors."""

    def __init__(self, name: str, others: list[str]) -> None:
        self.memory = Memory(others, math.inf)
        self._name = name
        self._others = others

    def update(self, time: float, poses: dict[str, Pose], outline: np.ndarray, boxes: dict) -> None:
        """Take the true scene after a control step: poses and outline points (P, 2)."""
        self.memory.move(time, poses[self._name])
        bodies = {name: poses[name] for name in ("object", *self._others)}
        bodies |= {f"outline{k}": (*point, 0.0) for k, point in enumerate(outline)}
        self.memory.detect(time, bodies, ROOM)


def _crosses(start: np.ndarray, ways: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Return a mask (P,): the lines from ``start`` along ``ways`` (P, 2) cross a box."""
    ways = np.where(np.abs(ways) < 1e-9, 1e-9, ways)
    bounds = np.sort(np.stack(((-half - start) / ways, (half - start) / ways)), axis=0)
    enters = np.maximum(bounds[0].max(axis=1), 0.0)
    return enters < np.minimum(bounds[1].min(axis=1), 1.0)
