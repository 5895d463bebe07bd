"""The table of objects: every object has a line for each team, with its least push."""

from __future__ import annotations

import functools

import pytest

from harl_mapush import config
from mapush import listing
from mapush.extensions.pivoting import object_table
from mapush.extensions.pivoting.object_table import PRESSED
from mapush.extensions.pivoting.push_mechanics import least_force_of
from mqe.config import merge
from mqe.world.objects import OBJECTS
from mqe.world.scene import sliding_force


def test_table_has_a_line_for_each_object_and_team(monkeypatch, capsys) -> None:
    monkeypatch.setattr(object_table, "TEAMS", (1, 4))
    assert listing.main(["objects"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in OBJECTS:
        assert sum(line.startswith(f"{name} ") for line in lines) == 2
    (box,) = (line for line in lines if line.startswith("cuboid") and "  1  0.78" in line)
    assert "12.8 N" in box
    assert "54,  59 N" in box
    assert "69,  75 N" in box


SMALL = ("cuboid", "tblock", "cylinder", "beam")
LARGE = ("tank", "girder", "pontoon")


@functools.cache
def relative_force(name: str, num_robots: int) -> float:
    """Least push over the force of a straight slide. It depends on the shape alone."""
    return least_force_of(OBJECTS[name], num_robots).force


@pytest.mark.parametrize(
    ("suite", "name"),
    [
        *((suite, name) for suite in ("team2", "team3", "team4") for name in SMALL),
        *((suite, name) for suite in ("team6", "team8") for name in LARGE),
    ],
)
def test_the_team_has_the_force_for_its_object_and_one_robot_fewer_does_not(
    suite: str, name: str
) -> None:
    values = merge(config.load_suite(suite).worlds, {"task": {"object": name}})
    cfg, _ = config.resolve({}, values)
    obj = cfg.task.pushed_object()
    num_robots = cfg.env.num_agents
    assert cfg.task.object_width == 1.0

    def share(number: int) -> float:
        return relative_force(name, number) * sliding_force(obj) / number

    assert share(num_robots) < PRESSED[1.0] < share(num_robots - 1)
