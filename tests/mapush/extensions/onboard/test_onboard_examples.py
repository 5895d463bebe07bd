"""The examples of an exported onboard team: memory, sensor and ROS 2 bridge."""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mapush.extensions.onboard.model import OnboardSenses
from mapush.extensions.onboard.sight import Sensor
from mqe.extensions import load_extensions
from mqe.world.scene import STEP_DT
from tests.support.paths import ROOT
from tests.support.pushing import make_state, make_task

sys.path.insert(0, str(ROOT / "examples"))

import onboard_sensor  # noqa: E402
import ros2_bridge  # noqa: E402
from onboard_memory import Memory, composed  # noqa: E402

load_extensions()
NAMES = ("goal_x", "object_x", "object_y", "object_sin_yaw", "teammates0_present", "object_age")


def test_a_detection_moves_with_the_odometry_and_ages() -> None:
    memory = Memory(["robot1"], memory_time=2.0)
    memory.goal = (4.0, 0.0)
    memory.move(0.0, (0.0, 0.0, 0.0))
    memory.move(0.1, (0.5, 0.0, 0.0))
    memory.detect(0.0, {"object": (2.0, 1.0, 0.3), "robot1": (0.0, 1.0, 0.0)})  # arrived late
    memory.move(1.0, (1.0, 0.0, 0.5 * math.pi))
    numbers = memory.numbers(NAMES, 1.0)
    expected = [0.0, 1.0, -1.0, math.sin(0.3 - 0.5 * math.pi), 1.0, 0.5]
    np.testing.assert_allclose(numbers, expected, atol=1e-9)
    assert memory.numbers(NAMES, 2.0).tolist() == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])


def test_the_outline_moves_with_the_object_and_is_forgotten_with_it() -> None:
    memory = Memory([])
    memory.move(0.0, (0.0, 0.0, 0.0))
    memory.detect(0.0, {"object": (2.0, 0.0, 0.0), "outline3": (1.5, 0.0, 0.0)})
    assert memory.numbers(["outline3_present", "outline3_x"], 0.0).tolist() == [1.0, 1.5]
    memory.detect(0.5, {"object": (3.0, 0.0, math.pi), "outline4": (2.5, 0.0, 0.0)})
    numbers = memory.numbers(["outline3_x", "outline4_x", "object_vx", "object_vy"], 0.5)
    # Half a second of averaging shows half of 2 m/s.
    assert numbers.tolist() == pytest.approx([3.5, 2.5, 1.0, 0.0])
    memory.detect(6.0, {"object": (2.0, 0.0, 0.0), "outline5": (1.5, 0.0, 0.0)})
    numbers = memory.numbers(["outline3_present", "outline5_present", "object_vx"], 6.0)
    assert numbers.tolist() == [0.0, 1.0, 0.0]


def test_a_robots_velocity_is_that_of_its_odometry() -> None:
    memory = Memory([])
    for step in range(11):
        memory.move(0.02 * step, (0.0, 0.006 * step, 0.5 * math.pi + 0.01 * step))
    names = [f"own_velocity_{k}" for k in range(3)]
    assert memory.numbers(names, 0.2).tolist() == pytest.approx([0.3, -0.03, 0.5], abs=0.01)


def test_a_robot_is_told_the_push_that_slides_the_object() -> None:
    memory = Memory([])
    memory.move(0.0, (0.0, 0.0, 0.0))
    with pytest.raises(SystemExit, match="say --load"):
        memory.numbers(["load"], 0.0)
    memory.load = 0.85
    assert memory.numbers(["load"], 0.0) == [0.85]


def test_an_unknown_input_ends_the_program() -> None:
    memory = Memory([])
    memory.move(0.0, (0.0, 0.0, 0.0))
    memory.detect(0.0, {"object": (2.0, 0.0, 0.0)})
    with pytest.raises(SystemExit, match="observes object_mass, which this example lacks"):
        memory.numbers(["object_mass"], 0.0)


def box(pose: Any, half: Any) -> list[Any]:
    cos, sin = math.cos(pose[2]), math.sin(pose[2])
    return [(np.array(pose[:2]), np.array([[cos, -sin], [sin, cos]]), np.array(half))]


def scenes(num_scenes: int) -> np.ndarray:
    """Return poses (S, 3, 3) of robot, teammate and object."""
    draw = np.random.default_rng(3)
    return draw.uniform(-2.5, 2.5, (num_scenes, 3, 3)) * (1.0, 1.0, 1.2)


def test_it_sees_what_the_librarys_sensor_sees() -> None:
    """Outline points in 20 drawn scenes of two robots, behind the object and behind the mate."""
    task = make_task(1, 2, senses={"name": "onboard"})
    model = task._senses
    assert isinstance(model, OnboardSenses)
    trunks = model._views.trunks
    half = np.array(task.constants.object.geoms[0].half_extents[:2])
    points = task.constants.footprint.points[0].numpy()
    view = SimpleNamespace(field_of_view=1.5708, sight=(0.3, 3.0), memory_time=5.0)
    num_seen = 0
    for robot, mate, thing in scenes(20):
        state = make_state(
            [robot[:2].tolist(), mate[:2].tolist()],
            [robot[2], mate[2]],
            thing[:2].tolist(),
            thing[2],
            [4.0, 1.0],
        )
        places = torch.cat((state.body_pos[..., :2], state.frame[..., 0, :]), dim=-1)
        poses = places.unsqueeze(1).expand(-1, 2, -1, -1)
        cosine = torch.full((1, 2), math.cos(0.5 * view.field_of_view))
        sensor = Sensor(places[:, :2, :2], places[:, :2, 2:], cosine, *view.sight)
        expected = model._views(sensor, poses)[0][0, 0].numpy()

        trunk = composed(mate, (*trunks.center[1].tolist(), 0.0))
        boxes = {"object": box(thing, half), "robot1": box(trunk, trunks.half_size[1].numpy())}
        outline = np.array([composed(thing, (*point, 0.0))[:2] for point in points])
        generator = np.random.default_rng(0)
        ours = onboard_sensor.Sensor("robot0", ["robot1"], view, generator)
        is_seen = ours._sees(tuple(robot), outline, boxes, {"robot0"})
        assert (is_seen != expected).sum() <= 1  # by rounding at an edge
        num_seen += int(expected.sum())
    assert num_seen > 10


def test_its_odometry_drifts_and_its_detections_come_late(monkeypatch) -> None:
    for name, value in (("DROPOUT", (0.0, 0.0)), ("NOISE", np.zeros(3)), ("BIAS", np.zeros(3))):
        monkeypatch.setattr(onboard_sensor, name, value)
    view = SimpleNamespace(field_of_view=6.2832, sight=(0.0, 50.0), memory_time=5.0)
    sensor = onboard_sensor.Sensor("robot0", [], view, np.random.default_rng(1))
    thing = (20.0, 1.0, 0.0)
    outline = np.array([composed(thing, (x, y, 0.0))[:2] for x in (-0.5, 0.5) for y in (-0.5, 0.5)])
    arrival = None
    for step in range(251):
        time = step * STEP_DT
        poses = {"robot0": (0.04 * step, 0.0, 0.0), "object": thing}
        sensor.update(time, poses, outline, {"object": box(thing, (0.5, 0.5))})
        if arrival is None and sensor.memory.numbers(["object_age"], time)[0] < 1.0:
            arrival = time
    assert arrival is not None
    assert 0.05 <= arrival <= 0.2 + 0.15 + STEP_DT
    assert 0.0 < math.dist(sensor._believed[:2], (10.0, 0.0)) < 0.35
    # The object is known in the same drifted frame.
    x, y = sensor.memory.numbers(["object_x", "object_y"], time)
    assert (x, y) == (pytest.approx(10.0, abs=0.1), pytest.approx(1.0, abs=0.3))


def message(time: float, pose: Any, *, is_odom: bool = False) -> dict[str, Any]:
    x, y, yaw = pose
    turn = {"x": 0.0, "y": 0.0, "z": math.sin(0.5 * yaw), "w": math.cos(0.5 * yaw)}
    spatial = {"position": {"x": x, "y": y, "z": 0.3}, "orientation": turn}
    stamp = {"sec": int(time), "nanosec": round(1e9 * (time % 1.0))}
    return {"header": {"stamp": stamp}, "pose": {"pose": spatial} if is_odom else spatial}


class Echo:
    """Stands for a recurrent actor: its command is the first three inputs, its memory counts."""

    def __init__(self, path: str) -> None:
        assert path.endswith("actor_agent1.onnx")

    def run(self, outputs: None, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [inputs["obs"][:, :3], inputs["hidden"] + 1.0]


@pytest.fixture
def bridge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ros2_bridge.Bridge:
    names = ["object_x", "robot0_y", "goal_x", "object_age", "outline0_present", "outline0_x"]
    return make_bridge(names, {"name": "onboard"}, tmp_path, monkeypatch)


def make_bridge(
    names: list[str], senses: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ros2_bridge.Bridge:
    inputs = {"obs": {"names": names}, "hidden": {"shape": ["batch", 2]}}
    contract = {
        "robots": [{"name": "robot0"}, {"name": "robot1"}],
        "rates": {"decision_hz": 10.0},
        "senses": senses,
        "models": {"actor_agent1.onnx": {"inputs": inputs}},
    }
    (tmp_path / "contract.json").write_text(json.dumps(contract))
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=Echo))
    return ros2_bridge.Bridge(tmp_path, "robot1")


def test_the_bridge_decides_over_recorded_messages(bridge) -> None:
    recorded = [("goal_pose", message(0.0, (5.0, 0.0, 0.0)))]
    for step in range(11):  # 50 Hz
        recorded.append(("odom", message(0.02 * step, (0.1 * step, 0.0, 0.0), is_odom=True)))
        if step == 3:
            recorded.append(("detections/object", message(0.0, (2.0, 0.5, 0.1))))
            recorded.append(("detections/robot0", message(0.04, (0.0, 1.5, 0.0))))
    lines = [json.dumps({"topic": topic, "message": content}) for topic, content in recorded]
    times, commands = zip(*bridge.replay(iter(lines)), strict=True)
    assert times == pytest.approx((0.0, 0.1, 0.2))
    np.testing.assert_allclose(
        np.array(commands), [[0.0, 0.0, 5.0], [1.5, 1.5, 4.5], [1.0, 1.5, 4.0]], atol=1e-6
    )
    assert bridge._hidden["hidden"].tolist() == [[3.0, 3.0]]


def test_the_bridge_stands_without_a_goal(bridge) -> None:
    bridge.receive("odom", message(0.0, (1.0, 0.0, 0.0), is_odom=True))
    assert not bridge.command(0.1).any()
    with pytest.raises(KeyError, match="imu"):
        bridge.receive("imu", message(0.0, (0.0, 0.0, 0.0)))
    assert "rclpy" not in sys.modules


def test_a_team_with_exact_observations_waits_for_each_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Motion capture sends places in the odometry's frame, and the outline once."""
    names = ["object_x", "robot0_x", "goal_x", "outline0_x"]
    bridge = make_bridge(names, {}, tmp_path, monkeypatch)
    assert bridge.missing(0.0) == ["goal_pose", "odom", "detections/object", "detections/robot0"]
    mate = message(0.0, (2.0, 1.5, 0.0))
    sent = {
        "odom": message(0.0, (1.0, 0.0, 0.0), is_odom=True),
        "goal_pose": message(0.0, (5.0, 0.0, 0.0)),
        "detections/object": message(0.0, (3.0, 0.5, 0.0)),
        "detections/robot0": mate,
    }
    outline = message(0.0, (-0.5, 0.0, 0.0))
    bridge.receive("outline", {"header": outline["header"], "poses": [outline["pose"]]})
    for topic, content in sent.items():
        content["header"]["frame_id"] = "room"
        bridge.receive(topic, content)
    assert bridge.command(0.5).tolist() == [2.0, 1.0, 4.0]
    assert bridge.memory.numbers(names, 0.5)[3] == 1.5
    # Places in the robot's own frame
    bridge.receive("detections/robot0", mate | {"header": mate["header"] | {"frame_id": "trunk"}})
    assert bridge.memory.numbers(names, 0.5)[1] == 2.0
    for topic in ("odom", "detections/object"):
        sent[topic]["header"]["stamp"]["sec"] = 6
        bridge.receive(topic, sent[topic])
    assert bridge.missing(6.4) == ["detections/robot0"]
    assert not bridge.command(6.4).any()
    assert bridge.memory.numbers(names, 6.4)[3] == 1.5  # the outline is kept
    assert bridge.missing(6.6) == ["odom", "detections/object", "detections/robot0"]


def test_the_bridge_names_what_it_lacks(bridge, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(SystemExit, match="--robot robot7: the team has robot0, robot1"):
        ros2_bridge.Bridge(tmp_path, "robot7")
    with pytest.raises(SystemExit, match="nowhere has no contract.json"):
        ros2_bridge.Bridge(tmp_path / "nowhere", "robot0")
    monkeypatch.setitem(sys.modules, "rclpy", None)
    with pytest.raises(SystemExit, match="no rclpy: source ROS 2's setup"):
        ros2_bridge.spin(bridge)


def test_the_bridge_is_told_a_push_in_newton(bridge, tmp_path: Path, monkeypatch) -> None:
    spun: list[ros2_bridge.Bridge] = []
    monkeypatch.setattr(ros2_bridge, "spin", spun.append)
    words = ["ros2_bridge.py", str(tmp_path), "--robot", "robot1", "--load", "85"]
    monkeypatch.setattr(sys, "argv", words)
    assert ros2_bridge.main() == 0
    assert spun[0].memory.load == 0.85


def test_the_bridge_reads_what_a_simulated_robot_recorded(bridge, tmp_path: Path) -> None:
    from onboard_team import Recording

    file = tmp_path / "recorded.jsonl"
    with file.open("w") as lines:
        memory = Recording(["robot0"], 5.0, lines)
        memory.goal = (5.0, 1.0)
        memory.write("goal_pose", 0.0, (*memory.goal, 0.0))
        memory.move(0.0, (0.0, 0.0, 0.0))
        memory.detect(0.0, {"object": (2.0, 0.5, 0.1), "outline3": (1.5, 0.0, 0.0)})
        memory.move(2.5, (1.0, 0.2, 0.4))
    with file.open() as lines:
        (_, _), (time, command) = bridge.replay(lines)
    assert time == 2.5
    # The recorded points fill the first places of the set.
    names = [name.replace("outline0", "outline3") for name in bridge._inputs]
    expected = memory.numbers(names, time)
    np.testing.assert_allclose(command, expected[:3], atol=1e-6)
    numbers = bridge.memory.numbers(bridge._inputs, time)
    np.testing.assert_allclose(numbers, expected, atol=1e-6)
    assert numbers[4] == 1.0
