"""Run an exported team on what its robots' own sensors see, in plain MuJoCo and NumPy.

``mapush export RUN team --suite onboard_90`` writes the folder of a team that learned with
``task.senses.name=onboard``, and ``python examples/onboard_team.py team`` runs it. The sensors see
past objects of boxes. A team with exact observations has motion capture in their place.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import mujoco
import numpy as np
from exported_team import Team, World, check_files, run_episode
from onboard_memory import Memory, Pose, composed
from onboard_sensor import MotionCapture, Sensor

# Of the library: [rad], [m], [s]
SENSES = {"field_of_view": 1.5184, "sight": (0.3, 3.0), "memory_time": 5.0}


class Recording(Memory):
    """A memory that writes what it takes as messages for ``ros2_bridge.py --messages``."""

    def __init__(self, others: Sequence[str], memory_time: float, file: TextIO) -> None:
        super().__init__(others, memory_time)
        self._file = file

    def write(self, topic: str, time: float, *poses: Pose, frame: str = "odom") -> None:
        """Write a pose at ``time`` [s], or those of an outline."""
        spatial = [_spatial(pose) for pose in poses]
        seconds, nanoseconds = divmod(round(1e9 * time), 10**9)
        stamp = {"sec": seconds, "nanosec": nanoseconds}
        message: dict[str, Any] = {"header": {"stamp": stamp, "frame_id": frame}}
        if topic == "outline":
            message["poses"] = spatial
        else:
            message["pose"] = {"pose": spatial[0]} if topic == "odom" else spatial[0]
        self._file.write(json.dumps({"topic": topic, "message": message}) + "\n")

    def move(self, time: float, pose: Pose) -> None:
        super().move(time, pose)
        self.write("odom", time, pose)

    def detect(self, time: float, bodies: Mapping[str, Pose], frame: Pose | None = None) -> None:
        super().detect(time, bodies, frame)
        frame_id = "base_link" if frame is None else "odom"
        for name, pose in bodies.items():
            if not name.startswith("outline"):
                self.write(f"detections/{name}", time, pose, frame=frame_id)
        if "object" in bodies:
            self.write("outline", time, *self.outline.values(), frame="object")


def _spatial(pose: Pose) -> dict[str, Any]:
    """Return a pose in the plane as a message's pose."""
    x, y, yaw = map(float, pose)
    turn = {"x": 0.0, "y": 0.0, "z": math.sin(0.5 * yaw), "w": math.cos(0.5 * yaw)}
    return {"position": {"x": x, "y": y, "z": 0.0}, "orientation": turn}


class SeenWorld(World):
    """A world whose observations are the robots' memories."""

    def __init__(self, folder: Path, contract: dict, view: Any) -> None:
        super().__init__(folder, contract)
        self._view = view
        self._generator = np.random.default_rng(view.seed)

    def begin(self, start: dict[str, np.ndarray]) -> None:
        super().begin(start)
        self._time = 0.0
        self._sensors = []
        for i, name in enumerate(self.names):
            others = [self.names[i - k] for k in range(1, len(self.names))]
            if self._view.field_of_view is None:
                self._sensors.append(MotionCapture(name, others))
            else:
                self._sensors.append(Sensor(name, others, self._view, self._generator))
            if i == 0 and self._view.messages is not None:
                memory_time = self._sensors[i].memory.memory_time
                recording = Recording(others, memory_time, self._view.messages)
                recording.write("goal_pose", 0.0, (*self.goal[:2], 0.0))
                self._sensors[i].memory = recording
                self._view.messages = None  # one episode
            self._sensors[i].memory.goal = tuple(self.goal[:2])
            self._sensors[i].memory.load = self.load

    def observations(self, names: list[list[str]]) -> np.ndarray:
        """Return each robot's observation (A, O) after a control step."""
        bodies = dict(zip(self.names, self.trunks, strict=True)) | {"object": self.object}
        poses = {}
        for name, body in bodies.items():
            matrix = self.data.xmat[body]
            poses[name] = (*self.data.xpos[body][:2], math.atan2(matrix[3], matrix[0]))
        boxes = {name: self._boxes(body) for name, body in bodies.items()}
        outline = np.array([composed(poses["object"], (*p, 0.0))[:2] for p in self.outline])
        rows = []
        for sensor, of_robot in zip(self._sensors, names, strict=True):
            sensor.update(self._time, poses, outline, boxes)
            rows.append(sensor.memory.numbers(of_robot, self._time))
        self._time += 1.0 / self.contract["rates"]["control_hz"]
        return np.array(rows)

    def _boxes(self, body: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return the centres, axes and half sizes of a body's boxes, from above."""
        boxes = []
        for geom in np.flatnonzero(self.model.geom_bodyid == body):
            if self.model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_BOX:
                axes = self.data.geom_xmat[geom].reshape(3, 3)[:2, :2]
                boxes.append((self.data.geom_xpos[geom][:2], axes, self.model.geom_size[geom][:2]))
        return boxes


def main() -> int:
    """Run a team's episodes in turn and print their endings."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="what mapush export wrote")
    parser.add_argument("--num_episodes", type=int, default=20)
    parser.add_argument("--field_of_view", type=float, help="[rad] (default: the export's)")
    parser.add_argument("--sight", type=float, nargs=2, help="[m] (default: the export's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--messages",
        type=argparse.FileType("w"),
        help="file for robot0's messages in the first episode",
    )
    arguments = parser.parse_args()
    check_files(arguments.folder)
    contract = json.loads((arguments.folder / "contract.json").read_text())
    is_exact = not (contract["senses"] or arguments.field_of_view or arguments.sight)
    for name, default in SENSES.items():
        if not is_exact and getattr(arguments, name, None) is None:
            setattr(arguments, name, contract["senses"].get(name, default))
    world = SeenWorld(arguments.folder, contract, arguments)
    starts = np.load(arguments.folder / contract["starts"])
    outcomes = []
    for i in range(min(arguments.num_episodes, len(starts["qpos"]))):
        start = {name: values[i] for name, values in starts.items()}
        outcome, seconds = run_episode(world, Team(arguments.folder, contract), start)
        outcomes.append(outcome)
        sys.stdout.write(f"episode {i}: {outcome} after {seconds:.2f} s\n")
        sys.stdout.flush()
    sys.stdout.write(f"{outcomes.count('success')} of {len(outcomes)} episodes succeeded\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
