"""Robots' files from anywhere: neither a hang nor a full memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqe.world.robots.maker_files import read_spec

ROBOT = '<body name="trunk"><geom size="0.1"/></body>'


def write(path: Path, content: str) -> Path:
    path.write_text(f"<mujoco><worldbody>{content}</worldbody></mujoco>")
    return path


def test_a_robot_in_an_included_file_is_read(tmp_path) -> None:
    write(tmp_path / "robot.xml", ROBOT)
    scene = tmp_path / "scene.xml"
    scene.write_text('<mujoco><include file="robot.xml"/></mujoco>')
    assert read_spec(scene).body("trunk") is not None


@pytest.mark.parametrize(
    "content",
    [
        f'<replicate count="1000000000" offset="0 0 1">{ROBOT}</replicate>',
        f'< replicate count="1000000000">{ROBOT}</replicate>',
        '<composite type="cable" count="30000000 1 1" size="1 1 1"><geom size="1"/></composite>',
        '<flexcomp name="x" type="grid" count="9999 9999 9999" dim="3"/>',
    ],
)
def test_elements_that_multiply_bodies_are_refused(content: str, tmp_path) -> None:
    robot = write(tmp_path / "robot.xml", content)
    scene = tmp_path / "scene.xml"
    scene.write_text('<mujoco><include file="robot.xml"/><include\nfile = "scene.xml"/></mujoco>')
    attached = tmp_path / "attached.xml"
    attached.write_text('<mujoco><asset><model name="m" file="robot.xml"/></asset></mujoco>')
    for path in (robot, scene, attached):
        with pytest.raises(ValueError, match="multiplies bodies; write them out"):
            read_spec(path)


def test_a_pipe_and_a_huge_file_are_refused(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.xml")
    with (tmp_path / "huge.xml").open("wb") as file:
        file.truncate(2**34)
    for name in ("pipe.xml", "huge.xml"):
        scene = tmp_path / "scene.xml"
        scene.write_text(f"<mujoco><include file='{name}'/></mujoco>")
        for path in (tmp_path / name, scene):
            with pytest.raises(OSError, match="a pipe, socket or device|larger than 16 MiB"):
                read_spec(path)
