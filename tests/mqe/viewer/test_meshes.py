"""Robots drawn by their own meshes: from a checkout, and never into physics."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import mujoco
import numpy as np
import pytest

from mqe.config import ConfigError
from mqe.viewer import meshes
from mqe.viewer.live.live_view import live_model
from mqe.viewer.looks import HIDDEN, shown_model, with_meshes
from mqe.world.objects import OBJECTS
from mqe.world.robots import ROBOTS
from mqe.world.scene import build_scene
from tests.mqe.viewer.test_looks import rolled_out
from tests.support.rounding import FEW_STEPS

LEG = """
<body name="{leg}_hip" pos="{x} {y} 0"><joint axis="1 0 0"/><geom class="seen" mesh="small"/>
 <body name="{leg}_thigh" pos="0 {side} 0"><joint axis="0 1 0"/>
  <geom class="seen" mesh="small" pos="0 0 -0.1"/>
  <body name="{leg}_calf" pos="0 0 -0.2"><joint axis="0 1 0"/><geom class="seen" mesh="small"/>
   <body name="{leg}_foot" pos="0 0 -0.2"><geom class="seen" mesh="small" quat="0 1 0 0"/></body>
  </body></body></body>
"""
ROBOT = """
<mujoco><default>
 <default class="seen">
  <geom type="mesh" contype="0" conaffinity="0" mass="1" rgba="0.2 0.3 0.4 1"/>
 </default>
</default>
<asset><mesh name="large" vertex="{large}"/><mesh name="small" vertex="{small}"/></asset>
<worldbody><body name="base"><freejoint/><geom class="seen" mesh="large"/>
<geom class="seen" mesh="small" pos="0.3 0 0"/><geom size="0.1"/>{legs}
</body></worldbody></mujoco>
"""


def corners(half: tuple[float, float, float]) -> str:
    x, y, z = half
    signs = [(i, j, k) for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)]
    return " ".join(f"{i * x} {j * y} {k * z}" for i, j, k in signs)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout with box robots."""
    legs = "".join(
        LEG.format(leg=leg, x=x, y=y, side=0.08 if y > 0 else -0.08)
        for leg, x, y in (
            ("FL", 0.19, 0.05),
            ("FR", 0.19, -0.05),
            ("RL", -0.19, 0.05),
            ("RR", -0.19, -0.05),
        )
    )
    text = ROBOT.format(
        large=corners((0.2, 0.1, 0.05)), small=corners((0.02, 0.02, 0.03)), legs=legs
    )
    for robot in ROBOTS.values():
        assert robot.menagerie is not None
        path = tmp_path / "menagerie" / robot.menagerie
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "menagerie"


def test_meshes_are_read_in_the_frames_of_the_links(checkout: Path) -> None:
    parts = meshes.prepare([ROBOTS["go1"]], checkout)["go1"]
    assert {part.link for part in parts} == set(meshes._LINKS)
    trunk, snout = [part for part in parts if part.link == "trunk"]
    np.testing.assert_allclose(trunk.vertices.max(axis=0), (0.2, 0.1, 0.05), atol=FEW_STEPS)
    np.testing.assert_allclose(snout.vertices.max(axis=0), (0.32, 0.02, 0.03), atol=FEW_STEPS)
    _, foot = [part for part in parts if part.link == "RL_calf"]  # welded to the calf
    np.testing.assert_allclose(foot.vertices.min(axis=0), (-0.02, -0.02, -0.23), atol=FEW_STEPS)
    assert foot.rgba == pytest.approx((0.2, 0.3, 0.4, 1.0))
    assert trunk.area == pytest.approx(8 * (0.2 * 0.1 + 0.2 * 0.05 + 0.1 * 0.05), rel=1e-5)


@pytest.mark.parametrize("make", [shown_model, live_model])
def test_meshes_change_nothing_of_the_physics(checkout: Path, make) -> None:
    scene = build_scene(3, OBJECTS["cuboid"], robots=("go1", "go2", "go1"))
    model = make(scene, meshes.prepare(scene.robots, checkout))
    assert model.nmesh > 2 * 13
    assert np.array_equal(rolled_out(model), rolled_out(scene.model))  # to the last bit


def test_an_exported_scene_with_meshes_has_the_same_physics(checkout: Path) -> None:
    scene = build_scene(2, OBJECTS["cuboid"])
    assert scene.spec is not None
    dressed = with_meshes(scene, scene.spec, meshes.prepare(scene.robots, checkout))
    dressed.compile()
    plain = mujoco.MjModel.from_xml_string(scene.spec.to_xml())
    model = mujoco.MjModel.from_xml_string(dressed.to_xml())
    assert model.nmesh > plain.nmesh
    assert np.array_equal(rolled_out(model), rolled_out(plain))  # to the last bit


def test_a_robot_wears_its_colour_on_the_largest_part_of_its_trunk(checkout: Path) -> None:
    scene = build_scene(2, None)
    model = shown_model(scene, meshes.prepare(scene.robots, checkout))
    for i in range(2):
        body = model.body(f"robot{i}/trunk").id
        material = model.material(f"team{i}").id
        trunk_geoms = list(np.flatnonzero(model.geom_bodyid == body))
        coloured = [geom for geom in trunk_geoms if model.geom_matid[geom] == material]
        assert len(coloured) == 1
        assert model.mesh(model.geom_dataid[coloured[0]].item()).name == "go1/trunk/mesh0"
        for geom in trunk_geoms:
            is_solid = bool(model.geom_contype[geom])
            assert (model.geom_group[geom] == HIDDEN) == is_solid


def test_shapes_are_the_default(checkout: Path) -> None:
    robots = [ROBOTS["go1"]]
    assert meshes.chosen(None, robots) == meshes.chosen("shapes", robots) == {}
    assert list(meshes.chosen(str(checkout), robots)) == ["go1"]


def test_robot_descriptions_may_bring_them(checkout: Path, monkeypatch) -> None:
    path = checkout / "unitree_go1" / "go1.xml"
    name = "robot_descriptions.go1_mj_description"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(MJCF_PATH=str(path)))
    assert list(meshes.chosen("meshes", [ROBOTS["go1"]])) == ["go1"]


@pytest.mark.parametrize("wanted", ["meshes", "nowhere"])
def test_missing_meshes_are_one_line(checkout: Path, monkeypatch, wanted: str) -> None:
    monkeypatch.setitem(sys.modules, "robot_descriptions.go1_mj_description", None)
    with pytest.raises(ConfigError, match=r"\.\[looks\]|checkout of MuJoCo Menagerie"):
        meshes.chosen(wanted, [ROBOTS["go1"]])


def test_large_meshes_need_the_package_that_reduces_them(checkout: Path, monkeypatch) -> None:
    monkeypatch.setattr(meshes, "TRIANGLES", 100)
    monkeypatch.setitem(sys.modules, "fast_simplification", None)
    with pytest.raises(ConfigError, match=r"\.\[looks\]"):
        meshes.prepare([ROBOTS["go1"]], checkout)
    requests = []

    def simplify(vertices, faces, reduction, agg):
        requests.append(reduction)
        return vertices.astype(np.float32), faces[:6]

    monkeypatch.setitem(sys.modules, "fast_simplification", SimpleNamespace(simplify=simplify))
    parts = meshes.prepare([ROBOTS["go1"]], checkout)["go1"]
    total = 12 * len(parts)
    assert requests == [pytest.approx(1.0 - 100 / total)] * len(parts)
    np.testing.assert_allclose(parts[0].vertices.max(axis=0), (0.2, 0.1, 0.05), atol=FEW_STEPS)
