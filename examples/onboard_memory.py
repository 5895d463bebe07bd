"""The memory of one robot with its own sensor, between detections and an exported actor.

``policy.yaml`` and ``contract.json`` name the source of every input: the given goal, the robot's
odometry, and the last detection of each body. Poses are x, y [m] and heading [rad].
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

Pose = Sequence[float]


class Memory:
    """Odometry, the given goal, and the last detections, in the odometry's frame."""

    def __init__(self, others: Sequence[str], memory_time: float = 5.0) -> None:
        """Remember bodies for ``memory_time`` [s]. ``others`` fill the places of a set."""
        self._slots = {f"teammates{k}": name for k, name in enumerate(others)}
        self._memory_time = memory_time
        self.goal: tuple[float, float] | None = None
        self._track: deque[tuple[float, Pose]] = deque(maxlen=500)
        self._seen: dict[str, tuple[float, Pose]] = {}

    @property
    def is_ready(self) -> bool:
        """Whether the robot has a goal and an odometry."""
        return self.goal is not None and bool(self._track)

    def move(self, time: float, pose: Pose) -> None:
        """Take the robot's pose by its odometry."""
        self._track.append((time, pose))

    def detect(self, time: float, bodies: Mapping[str, Pose]) -> None:
        """Remember poses in the robot's frame, seen at ``time``, which may have passed a while ago.

        Points of the object's outline are bodies as well.
        """
        if not self._track:
            return
        _, robot = min(self._track, key=lambda entry: abs(entry[0] - time))
        if "object" in bodies:
            self._seen = {k: v for k, v in self._seen.items() if not k.startswith("outline")}
        self._seen |= {name: (time, composed(robot, pose)) for name, pose in bodies.items()}

    def numbers(self, names: Sequence[str], time: float) -> np.ndarray:
        """Return the actor's inputs, zeros for unknown bodies."""
        robot = self._track[-1][1]
        values = {name: self._number(name, robot, time) for name in names}
        return np.array([values[name] for name in names])

    def _number(self, name: str, robot: Pose, time: float) -> float:
        if name == "present":
            return 1.0
        what, _, number = name.partition("_")
        body = self._slots.get(what, what)
        age = 0.0
        pose: Pose | None = None
        if body == "goal" and self.goal is not None:
            pose = (*self.goal, 0.0)
        elif body in self._seen:
            seen_at, pose = self._seen[body]
            age = (time - seen_at) / self._memory_time
        if pose is None or age >= 1.0:
            return float(number == "age")
        x, y, yaw = relative(robot, pose)
        values = {"x": x, "y": y, "yaw": yaw % (2.0 * math.pi), "age": age, "present": 1.0}
        values |= {"sin_yaw": math.sin(yaw), "cos_yaw": math.cos(yaw)}
        if number not in values:
            raise SystemExit(f"the team observes {name}, which this example lacks; add it here")
        return values[number]


def composed(frame: Pose, pose: Pose) -> Pose:
    """Return a pose in ``frame`` as a pose in the frame's own frame."""
    cos, sin = math.cos(frame[2]), math.sin(frame[2])
    x = frame[0] + cos * pose[0] - sin * pose[1]
    y = frame[1] + sin * pose[0] + cos * pose[1]
    return x, y, frame[2] + pose[2]


def relative(frame: Pose, pose: Pose) -> Pose:
    """Return a pose as seen from ``frame``. The opposite of ``composed``."""
    dx = pose[0] - frame[0]
    dy = pose[1] - frame[1]
    cos, sin = math.cos(frame[2]), math.sin(frame[2])
    return cos * dx + sin * dy, cos * dy - sin * dx, pose[2] - frame[2]
