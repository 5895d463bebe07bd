"""A ROS 2 node between one robot's topics and an exported team, with or without onboard senses.

``python examples/ros2_bridge.py team --robot robot0`` runs on the robot, with ``rclpy``. With
``--messages FILE`` it reads recorded messages instead, one JSON object a line: ``topic`` and
``message``, and writes its commands. Every message has a header with the time of its measurement.

================== ======================================== =======================================
topic              type                                     feeds
================== ======================================== =======================================
odom               nav_msgs/Odometry                        the robot's odometry
goal_pose          geometry_msgs/PoseStamped, odom's frame  the given goal
detections/NAME    geometry_msgs/PoseStamped, robot's frame the last detection of object or robot
                   or odom's frame (``header.frame_id``)
outline            geometry_msgs/PoseArray, object's frame  points of its outline that were seen
cmd_vel (output)   geometry_msgs/Twist                      velocity command of the gait
================== ======================================== =======================================

The robot stands while its odometry is silent for ``STALE``. So it does, in a team with exact
observations, without a recent pose of object and teammates.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onboard_memory import Memory, Pose

DETECTIONS = "detections/"
ODOMETRY = (0.0, 0.0, 0.0)  # the odometry's own frame
STALE = 0.5  # [s]


class Bridge:
    """One robot's memory and actor, fed with messages as plain data."""

    def __init__(self, folder: Path, robot: str) -> None:
        """Read the contract in ``folder``, and the actor of ``robot``."""
        import onnxruntime

        described = folder / "contract.json"
        if not described.is_file():
            raise SystemExit(f"{folder} has no contract.json; name a folder of mapush export")
        contract = json.loads(described.read_text())
        names = [entry["name"] for entry in contract["robots"]]
        if robot not in names:
            raise SystemExit(f"--robot {robot}: the team has {', '.join(names)}")
        i = names.index(robot)
        self.others = [names[i - k] for k in range(1, len(names))]
        self.period = 1.0 / contract["rates"]["decision_hz"]
        memory_time = 5.0 if contract["senses"] else math.inf
        self.memory = Memory(self.others, contract["senses"].get("memory_time", memory_time))
        self._known = () if contract["senses"] else ("object", *self.others)
        self._frame = ""
        inputs = contract["models"][f"actor_agent{i}.onnx"]["inputs"]
        self._inputs = inputs["obs"]["names"]
        # The memory of a recurrent actor, zeros at the start
        self._hidden = {}
        if "hidden" in inputs:
            self._hidden["hidden"] = np.zeros((1, inputs["hidden"]["shape"][1]), np.float32)
        self._actor = onnxruntime.InferenceSession(str(folder / f"actor_agent{i}.onnx"))
        self._decided: float | None = None

    def receive(self, topic: str, message: Mapping[str, Any]) -> None:
        """Take a message. Raise KeyError for an unknown topic."""
        time = _seconds(message["header"]["stamp"])
        frame = message["header"].get("frame_id", "")
        if topic == "odom":
            self._frame = frame
            self.memory.move(time, _planar(message["pose"]["pose"]))
        elif topic == "goal_pose":
            x, y, _ = _planar(message["pose"])
            self.memory.goal = (x, y)
        elif topic.removeprefix(DETECTIONS) in ("object", *self.others):
            body = {topic.removeprefix(DETECTIONS): _planar(message["pose"])}
            self.memory.detect(time, body, ODOMETRY if frame and frame == self._frame else None)
        elif topic == "outline":
            points = enumerate(message["poses"])
            self.memory.outline = {f"outline{k}": _planar(pose) for k, pose in points}
        else:
            raise KeyError(topic)

    def missing(self, time: float) -> list[str]:
        """Return the topics that the robot waits for."""
        memory = self.memory
        topics = [] if memory.goal else ["goal_pose"]
        if memory.silence(time) > STALE:
            topics.append("odom")
        return topics + [
            DETECTIONS + name for name in self._known if memory.silence(time, name) > STALE
        ]

    def command(self, time: float) -> np.ndarray:
        """Return the velocity command: forwards, left [m/s], and yaw rate [rad/s].

        It is 0 while topics are missing.
        """
        if self.missing(time):
            return np.zeros(3)
        obs = self.memory.numbers(self._inputs, time)[None].astype(np.float32)
        command, *hidden = self._actor.run(None, {"obs": obs, **self._hidden})
        self._hidden = dict(zip(self._hidden, hidden, strict=True))
        return command[0]

    def replay(self, lines: Iterator[str]) -> Iterator[tuple[float, np.ndarray]]:
        """Yield the time and the command of every decision over recorded messages."""
        for line in lines:
            recorded = json.loads(line)
            self.receive(recorded["topic"], recorded["message"])
            time = _seconds(recorded["message"]["header"]["stamp"])
            if recorded["topic"] == "odom" and self._is_due(time):
                yield time, self.command(time)

    def _is_due(self, time: float) -> bool:
        if self._decided is not None and time < self._decided + self.period - 1e-6:
            return False
        self._decided = time
        return True


def _seconds(stamp: Mapping[str, int]) -> float:
    return stamp["sec"] + 1e-9 * stamp["nanosec"]


def _planar(pose: Mapping[str, Any]) -> Pose:
    """Return x, y and heading of a pose in space."""
    at = pose["position"]
    turn = pose["orientation"]
    sine = 2.0 * (turn["w"] * turn["z"] + turn["x"] * turn["y"])
    cosine = 1.0 - 2.0 * (turn["y"] ** 2 + turn["z"] ** 2)
    return at["x"], at["y"], math.atan2(sine, cosine)


def _waits_for(topics: list[str]) -> str:
    return f"waits for {', '.join(topics)}"


def spin(bridge: Bridge) -> None:
    """Serve the robot's topics until the node is stopped."""
    try:
        import rclpy
    except ModuleNotFoundError:
        raise SystemExit("no rclpy: source ROS 2's setup, or name --messages FILE") from None
    from geometry_msgs.msg import PoseArray, PoseStamped, Twist
    from nav_msgs.msg import Odometry
    from rosidl_runtime_py import message_to_ordereddict

    rclpy.init()
    node = rclpy.create_node("mapush_bridge")
    publisher = node.create_publisher(Twist, "cmd_vel", 1)

    def listen(kind: type, topic: str) -> None:
        def take(message: Any) -> None:
            bridge.receive(topic, message_to_ordereddict(message))

        node.create_subscription(kind, topic, take, 10)

    def decide() -> None:
        command = Twist()
        time = 1e-9 * node.get_clock().now().nanoseconds
        values = bridge.command(time)
        command.linear.x, command.linear.y, command.angular.z = map(float, values)
        publisher.publish(command)
        if missing := bridge.missing(time):
            node.get_logger().warning(_waits_for(missing), throttle_duration_sec=2.0)

    listen(Odometry, "odom")
    listen(PoseStamped, "goal_pose")
    listen(PoseArray, "outline")
    for name in ("object", *bridge.others):
        listen(PoseStamped, DETECTIONS + name)
    node.create_timer(bridge.period, decide)
    rclpy.spin(node)


def main() -> int:
    """Serve a robot, or print the commands over recorded messages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="what mapush export wrote")
    parser.add_argument("--robot", default="robot0")
    parser.add_argument("--load", type=float, help="push that slides the object [N]")
    parser.add_argument("--messages", type=Path, help="recorded messages, one JSON object a line")
    arguments = parser.parse_args()
    bridge = Bridge(arguments.folder, arguments.robot)
    if arguments.load is not None:
        bridge.memory.load = arguments.load / 100.0
    if arguments.messages is None:
        spin(bridge)
        return 0
    with arguments.messages.open() as lines:
        for time, command in bridge.replay(lines):
            x, y, turning = command
            said = f"{x:.2f} m/s, {y:.2f} m/s, {turning:.2f} rad/s"
            if missing := bridge.missing(time):
                said = _waits_for(missing)
            sys.stdout.write(f"{time:.2f} s: {said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
