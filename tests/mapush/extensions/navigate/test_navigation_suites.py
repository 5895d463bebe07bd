"""Suites of the navigation task."""

from __future__ import annotations

import pytest

from harl_mapush import config
from harl_mapush.runs import checkpoint, evaluation_worlds
from mapush import cli


@pytest.mark.parametrize("name", ["two_cubes", "scattered", "doors", "u_turn"])
def test_maps_of_a_suite_never_change(name: str) -> None:
    assert config.load_suite(name).worlds["task"]["map_seed"] == 2026


def test_worlds_of_a_suite_in_words() -> None:
    folder = checkpoint.resolve("pretrained:leader")
    cfg = evaluation_worlds.settings(folder, config.load_suite("two_cubes").worlds)
    words = "suite two_cubes: 2 robots, cuboid of 4 kg, sliding at 13 N\n"
    assert evaluation_worlds.in_words(cfg, "two_cubes") == words


def test_a_suite_of_another_task_is_refused_in_an_export(tmp_path, capsys) -> None:
    out = tmp_path / "team"
    assert cli.main(["export", "pretrained:any", str(out), "--suite", "doors"]) == 2
    words = "task.name=go1push_upper: checkpoint "
    assert words in capsys.readouterr().err
    assert not out.exists()
