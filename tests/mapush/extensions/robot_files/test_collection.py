"""Robots by their names in robot_descriptions, with a package of the test's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harl_mapush.runs import named_files
from mapush.extensions.robot_files.command import main
from mqe.config import ConfigError
from mqe.world.robots import ROBOTS, robots_of
from tests.mapush.extensions.robot_files.test_robot_files import go1_spec, run_cfg, write
from tests.support.registries import restored_registries

NAME = "robot_descriptions:quadruped_mj_description"


@pytest.fixture
def package(tmp_path, monkeypatch) -> Iterator[Path]:
    """Return the folder of a package with a robot, one without a file, and an unreachable one."""
    folder = tmp_path / "robot_descriptions"
    folder.mkdir()
    path = write(go1_spec(), folder / "go1.xml")
    (folder / "__init__.py").touch()
    (folder / "quadruped_mj_description.py").write_text(f"MJCF_PATH = {str(path)!r}\n")
    (folder / "xacro_description.py").touch()
    (folder / "gitless_description.py").write_text("import no_git\n")
    (folder / "far_description.py").write_text("raise OSError('no route\\nto host')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in [name for name in sys.modules if name.startswith("robot_descriptions")]:
        monkeypatch.delitem(sys.modules, module)
    yield folder
    for module in [name for name in sys.modules if name.startswith("robot_descriptions")]:
        del sys.modules[module]


def test_a_description_is_a_robot_beside_others(package):
    with restored_registries():
        robots = robots_of(("go1", NAME), 2)
    assert [robot.name for robot in robots] == ["go1", "quadruped_mj_description"]
    assert robots[1].mass == pytest.approx(robots[0].mass, rel=1e-5)


def test_a_run_names_the_description_and_has_its_digest(package):
    with restored_registries():
        cfg = named_files.absolute(run_cfg("go1_velocity", NAME))
        assert cfg.env.robots == NAME
        assert "env.robots.quadruped_mj_description" in named_files.digests_of(cfg)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent_description", "is not in the package"),
        ("xacro_description", "has neither an MJCF nor a plain URDF"),
        ("far_description", r"was not downloaded \(no route to host\)"),
        ("gitless_description", "was not downloaded .*no_git"),
        ("..far", "was not downloaded"),
    ],
)
def test_an_unfit_description_is_refused_in_one_line(name, message, package):
    with pytest.raises(ConfigError, match=message) as caught:
        robots_of(f"robot_descriptions:{name}", 1)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "robot_descriptions", None)
    with pytest.raises(ConfigError, match=r"needs robot_descriptions .*; pip install"):
        ROBOTS.find(NAME, "env.robots")


def test_the_command_reads_a_description(package, tmp_path, capsys):
    out = tmp_path / "quadruped.yaml"
    assert main([NAME, "--out", str(out)]) == 0
    assert " kg; " in capsys.readouterr().out
    assert out.is_file()
