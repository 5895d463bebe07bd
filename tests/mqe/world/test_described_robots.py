"""Robots in YAML files of users."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mqe.config import ConfigError
from mqe.world import robots
from mqe.world.robots import ROBOTS, robots_of
from tests.support.paths import ROOT

GO2 = ROOT / "mqe" / "assets" / "robots" / "go2.yaml"


@pytest.fixture(autouse=True)
def registered():
    """Take robots from files out of the registry again."""
    names = set(ROBOTS)
    yield
    for name in set(ROBOTS) - names:
        del ROBOTS[name]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("trunk_shapes:", "shapes_of_trunk:", "KeyError: 'trunk_shapes'"),
        ("foot_radius: 0.022", "foot_radius: -1.0", "ValueError: "),
        ("foot_radius: 0.022", "foot_radius: wide", "robot.foot_radius has 'wide' in place of"),
        ("foot_radius: 0.022", "foot_radius: [0.022]", r"foot_radius=\[0.022\] must be a number"),
        ("link_lengths: [0.213,", "link_lengths: [long,", "robot.link_lengths has 'long' in place"),
        ("knee_radius:", "knee_width:", "TypeError: .*knee_width"),
        ("link_lengths: [0.213, 0.213]", "link_lengths: [0.213]", "ValueError: "),
    ],
)
def test_a_file_without_a_whole_robot_is_refused_in_one_line(
    old: str, new: str, reason: str, tmp_path: Path
) -> None:
    text = GO2.read_text()
    assert old in text
    path = tmp_path / "mended.yaml"
    path.write_text(text.replace(old, new, 1))
    match = f"mended.yaml: has no whole robot .*{reason}.*; compare it with"
    with pytest.raises(ConfigError, match=match) as error:
        robots_of(str(path), 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("sides", [(1.0,), (0.2,) * 13, (0.2, -0.2, 0.0, -0.2)])
def test_wheels_that_cannot_turn_the_robot_are_refused(sides: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=f"has {len(sides)} wheels; give it 4 to 12, left and"):
        replace(ROBOTS["go1"], wheels=tuple((0.1, y, 0.0) for y in sides))


def test_a_teams_file_is_read_once(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "copied.yaml"
    shutil.copyfile(GO2, path)
    reads: list[Path] = []
    read = robots.ROBOT_READERS[".yaml"]
    monkeypatch.setitem(
        robots.ROBOT_READERS, ".yaml", lambda file: reads.append(file) or read(file)
    )
    team = robots_of(["go1", str(path), str(path)], 3)
    assert [robot.name for robot in team] == ["go1", "copied", "copied"]
    assert reads == [path]
