"""``mapush sim2sim``: both worlds from one command line, and the interval of their difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harl_mapush.test import EXAMINATIONS
from mapush import cli
from mapush.extensions.gait_examination.examination import press
from mapush.extensions.unitree.sim2sim import difference_interval
from mqe.controllers.gait_network import load_gait
from mqe.tasks.episode_report import wilson_interval
from mqe.world.robots import ROBOTS
from tests.support.vendor_mjcf import write_checkout

SHORT = ["--set", "task.episode_length_s=0.4", "--device", "cpu", "--sim", "mujoco"]


def test_a_difference_of_shares_has_newcombes_interval() -> None:
    """56 of 70 and 48 of 80: 0.20 with 0.0524 to 0.3339 (Newcombe 1998, table II, method 10)."""
    first = (48 / 80, *wilson_interval(48, 80))
    second = (56 / 70, *wilson_interval(56, 70))
    low, high = difference_interval(first, second)
    assert (low, high) == (pytest.approx(0.0524, abs=5e-5), pytest.approx(0.3339, abs=5e-5))


def test_a_team_is_measured_in_both_worlds_with_the_same_gaits(tmp_path: Path, capsys) -> None:
    checkout = write_checkout(tmp_path / "vendor")
    found = tmp_path / "found.json"
    line = ["sim2sim", "pretrained:cuboid", str(checkout), "--num_episodes", "2", *SHORT]
    assert cli.main([*line, "--set", "env.robots=go2", "--json", str(found)]) == 0
    output = capsys.readouterr().out
    assert f"theirs: {checkout}" in output
    assert "success_rate: theirs - ours = " in output
    metrics = json.loads(found.read_text())
    assert [metrics[world]["num_episodes"] for world in ("ours", "theirs")] == [2, 2]


@pytest.mark.parametrize(
    ("path", "reason"),
    [("physical", "checkout of unitree_mujoco"), ("nowhere", "no such file")],
)
def test_a_path_that_is_no_checkout_is_one_line(path: str, reason: str, capsys) -> None:
    assert cli.main(["sim2sim", "pretrained:cuboid", path, "--set", "env.robots=go2"]) == 2
    assert reason in capsys.readouterr().err


def test_our_own_world_is_not_the_makers(tmp_path: Path, capsys) -> None:
    checkout = str(write_checkout(tmp_path / "vendor"))
    line = ["sim2sim", "pretrained:cuboid", checkout, "--set", "env.robots=go2"]
    assert cli.main([*line, "--set", f"env.model={checkout}"]) == 2
    assert "our own world is one of physical, reference; leave it out" in capsys.readouterr().err


def test_a_gait_is_examined_in_both_worlds(tmp_path: Path, monkeypatch, capsys) -> None:
    checkout = write_checkout(tmp_path / "vendor")

    def examine(cfg, folder, device):
        gait = load_gait(str(folder), device, ROBOTS["go2"])
        return press(gait, cfg.sim, 0, 2, 0.2, robot="go2", model=cfg.env.model)

    monkeypatch.setitem(EXAMINATIONS, "gait", examine)
    line = ["sim2sim", "pretrained:go2_velocity", str(checkout), "--device", "cpu"]
    assert cli.main([*line, "--sim", "mujoco"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[-3].split() == ["ours", "theirs"]
    assert rows[-2].split() == ["press_falls", "0", "0"]
