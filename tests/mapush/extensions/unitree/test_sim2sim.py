"""The suite ``sim2sim``: a team in both worlds, from the same starts."""

from __future__ import annotations

import json

from mapush import cli
from tests.support.vendor_mjcf import write_checkout

WORDS = ["test", "pretrained:cuboid", "--suite", "sim2sim", "--set", "env.robots=go2"]
SHORT = ["--set", "task.episode_length_s=0.2", "--device", "cpu", "--sim", "mujoco"]


def test_a_team_is_measured_in_both_worlds(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write_checkout(tmp_path / "unitree_mujoco")
    assert cli.main([*WORDS, *SHORT, "--num_episodes", "2", "--json", "rows.json"]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["condition"], row["num_episodes"]) for row in rows] == [("ours", 2), ("theirs", 2)]
    assert "env.model" not in capsys.readouterr().err


def test_a_missing_checkout_is_one_line(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*WORDS, *SHORT]) == 2
    assert "no file or folder has this name" in capsys.readouterr().err
