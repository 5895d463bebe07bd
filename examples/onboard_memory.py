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
MOTION_TIME = 0.5  # [s] over which the object's velocity is averaged
OWN_TIME = 0.1  # [s] over which the robot's is


class Memory:
    """Odometry, the given goal, and the last detections, in the odometry's frame."""

    def __init__(self, others: Sequence[str], memory_time: float = 5.0) -> None:
        """Remember bodies for ``memory_time`` [s]. ``others`` fill the places of a set."""
        self._slots = {f"teammates{k}": name for k, name in enumerate(others)}
        self.memory_time = memory_time
        self.goal: tuple[float, float] | None = None
        self.load: float | None = None  # [100 N] push that slides the object, given
        self._track: deque[tuple[float, Pose]] = deque(maxlen=500)
        self._seen: dict[str, tuple[float, Pose]] = {}
        self.outline: dict[str, Pose] = {}  # points in the object's frame
        self._motion = np.zeros(2)  # [m/s] of the object

    def move(self, time: float, pose: Pose) -> None:
        """Take the robot's pose by its odometry."""
        self._track.append((time, pose))

    def silence(self, time: float, body: str | None = None) -> float:
        """Return the time [s] since the last detection of ``body`` (default: the odometry)."""
        last = self._seen.get(body) if body else (self._track[-1] if self._track else None)
        return time - last[0] if last else math.inf

    def detect(self, time: float, bodies: Mapping[str, Pose], frame: Pose | None = None) -> None:
        """Remember poses in ``frame`` (default: the robot's), seen at ``time``, which may have
        passed a while ago.

        Points of the object's outline are bodies as well.
        """
        if not self._track:
            return
        _, robot = min(self._track, key=lambda entry: abs(entry[0] - time))
        frame = robot if frame is None else frame
        if "object" in bodies:
            self._follow(time, composed(frame, bodies["object"]))
        for name, pose in bodies.items():
            if name.startswith("outline"):
                self.outline[name] = relative(bodies["object"], pose)
            else:
                self._seen[name] = time, composed(frame, pose)

    def _follow(self, time: float, pose: Pose) -> None:
        """Add a detection of the object to its velocity, or forget an object unseen for long."""
        if "object" not in self._seen:
            return
        seen_at, before = self._seen["object"]
        passed = time - seen_at
        if passed >= self.memory_time:
            self.outline = {}
            self._motion = np.zeros(2)
            return
        way = np.subtract(pose[:2], before[:2])
        self._motion += (way - self._motion * passed) / (passed + MOTION_TIME)

    def numbers(self, names: Sequence[str], time: float) -> np.ndarray:
        """Return the actor's inputs, zeros for unknown bodies."""
        robot = self._track[-1][1]
        values = {name: self._number(name, robot, time) for name in names}
        return np.array([values[name] for name in names])

    def _number(self, name: str, robot: Pose, time: float) -> float:
        if name == "present":
            return 1.0
        if name == "load":
            if self.load is None:
                raise SystemExit("say --load 85 if the object slides at 85 N: the team observes it")
            return self.load
        what, _, number = name.partition("_")
        body = self._slots.get(what, what)
        age = 0.0
        pose: Pose | None = None
        if body == "goal" and self.goal is not None:
            pose = (*self.goal, 0.0)
        elif body == "own":
            return self._own_velocity()[int(number[-1])]
        elif body in self._seen or (body in self.outline and "object" in self._seen):
            seen_at, pose = self._seen.get(body) or self._seen["object"]
            age = (time - seen_at) / self.memory_time
            if body in self.outline:
                pose = composed(pose, self.outline[body])
        if pose is None or age >= 1.0:
            return float(number == "age")
        x, y, yaw = relative(robot, pose)
        values = {"x": x, "y": y, "yaw": yaw % (2.0 * math.pi), "age": age, "present": 1.0}
        values |= {"sin_yaw": math.sin(yaw), "cos_yaw": math.cos(yaw)}
        vx, vy, _ = relative((0.0, 0.0, robot[2]), (*self._motion, 0.0))
        values |= {"vx": vx, "vy": vy}
        if number not in values:
            raise SystemExit(f"the team observes {name}, which this example lacks; add it here")
        return values[number]

    def _own_velocity(self) -> tuple[float, float, float]:
        """Return the robot's velocity [m/s] and yaw rate [rad/s] by its odometry."""
        time, pose = self._track[-1]
        earlier = [(t, p) for t, p in self._track if t < time - OWN_TIME + 1e-6]
        before, past = (earlier or self._track)[-1 if earlier else 0]
        passed = max(time - before, 1e-6)
        x, y, _ = relative(pose, past)
        turn = (pose[2] - past[2] + math.pi) % (2.0 * math.pi) - math.pi
        return -x / passed, -y / passed, turn / passed


def composed(frame: Pose, pose: Pose) -> Pose:
    """Return a pose, given in ``frame``, in the frame in which ``frame`` is given."""
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
