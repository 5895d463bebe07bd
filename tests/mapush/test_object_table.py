"""mapush.object_table: every object has a line for each team, with its least push."""

from __future__ import annotations

import pytest

from mapush import listing
from mqe.world.objects import OBJECTS


def test_table_has_a_line_for_each_object_and_team(capsys: pytest.CaptureFixture[str]):
    assert listing.main(["objects"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in OBJECTS:
        assert sum(line.startswith(f"{name} ") for line in lines) == 6
    (box,) = (line for line in lines if line.startswith("cuboid") and "  1  0.78" in line)
    assert "12.8 N" in box
    assert "54,  59 N" in box
    assert "69,  75 N" in box
