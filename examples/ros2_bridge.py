"""A ROS 2 node between one robot's topics and an exported onboard team.

``python examples/ros2_bridge.py team --robot robot0`` runs on the robot, with ``rclpy``. With
``--messages FILE`` it reads recorded messages instead, one JSON object a line: ``topic`` and
``message``, and writes its commands. Every message has a header with the time of its measurement.

================== ======================================== =======================================
topic              type                                     feeds
================== ======================================== =======================================
odom               nav_msgs/Odometry                        the robot's odometry
goal_pose          geometry_msgs/PoseStamped, odom's frame  the given goal
detections/NAME    geometry_msgs/PoseStamped, robot's frame the last detection of object or robot
outline            geometry_msgs/PoseArray, object's frame  points of its outline that were seen
cmd_vel (output)   geometry_msgs/Twist                      velocity command of the gait
================== ======================================== =======================================
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


class Bridge:
    """One robot's memory and actor, fed with messages as plain data."""

    def __init__(self, folder: Path, robot: str) -> None:
        """Read the contract in ``folder``, and the actor of ``robot``."""
        import onnxruntime

        contract = json.loads((folder / "contract.json").read_text())
        names = [described["name"] for described in contract["robots"]]
        i = names.index(robot)
        self.others = [names[i - k] for k in range(1, len(names))]
        self.period = 1.0 / contract["rates"]["decision_hz"]
        self.memory = Memory(self.others, contract["senses"].get("memory_time", 5.0))
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
        if topic == "odom":
            self.memory.move(time, _planar(message["pose"]["pose"]))
        elif topic == "goal_pose":
            x, y, _ = _planar(message["pose"])
            self.memory.goal = (x, y)
        elif topic.removeprefix(DETECTIONS) in ("object", *self.others):
            self.memory.detect(time, {topic.removeprefix(DETECTIONS): _planar(message["pose"])})
        elif topic == "outline":
            points = enumerate(message["poses"])
            self.memory.outline = {f"outline{k}": _planar(pose) for k, pose in points}
        else:
            raise KeyError(topic)

    def command(self, time: float) -> np.ndarray:
        """Return the velocity command: forwards, left [m/s], and yaw rate [rad/s].

        It is 0 without a goal or an odometry.
        """
        if not self.memory.is_ready:
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


def spin(bridge: Bridge) -> None:
    """Serve the robot's topics until the node is stopped."""
    import rclpy
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
        values = bridge.command(1e-9 * node.get_clock().now().nanoseconds)
        command.linear.x, command.linear.y, command.angular.z = map(float, values)
        publisher.publish(command)

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
            sys.stdout.write(f"{time:.2f} s: {x:.2f} m/s, {y:.2f} m/s, {turning:.2f} rad/s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
