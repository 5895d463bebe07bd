"""An exported gait in plain MuJoCo."""

from __future__ import annotations

import json
import sys

import numpy as np

from mapush import cli
from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "examples"))

import exported_team  # noqa: E402


def test_a_gait_leaves_alone_and_walks_in_the_example(tmp_path, monkeypatch) -> None:
    assert cli.main(["export", "pretrained:go2_velocity", str(tmp_path / "gait")]) == 0
    assert {path.name for path in (tmp_path / "gait").iterdir()} == {
        "gait.onnx",
        "contract.json",
        "manifest.json",
        "scene.xml",
    }
    commands = ((0.5, 0.0, 0.0), (0.0, 0.3, 0.4))
    monkeypatch.setattr(exported_team, "COMMANDS", commands)
    monkeypatch.setattr(exported_team, "HOLD_TIME", 2.0)
    contract = json.loads((tmp_path / "gait" / "contract.json").read_text())
    world = exported_team.World(tmp_path / "gait", contract)
    joints = [f"robot0/{joint}" for joint in contract["robots"][0]["joints"]]
    assert [world.model.actuator(k).name for k in range(world.model.nu)] == joints
    gait = exported_team.Network(tmp_path / "gait" / "gait.onnx")
    velocities = exported_team.follow_commands(world, gait)
    np.testing.assert_allclose(velocities, commands, atol=0.06)
