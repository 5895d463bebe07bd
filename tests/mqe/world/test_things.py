"""Things from MJCF files: addresses, kinematics, contacts, ropes and refused files."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from mqe.config import ConfigError
from mqe.registry import TASKS, SimCfg, make_env
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.tasks.entry import EnvCfg
from mqe.world.broken_worlds import Limits
from mqe.world.layout import Layout
from mqe.world.randomization import Randomization, RandomizationCfg
from mqe.world.scene import KERB_HEIGHTS, KERB_SPACING, Scene, build_scene, pack_layout, read_state
from mqe.world.state import SceneState
from mqe.world.streams import Streams
from mqe.world.things import Thing
from tests.support.lazy_modules import LazyModule, needs_warp
from tests.support.paths import ROOT
from tests.support.registries import restored_registries

CPU = torch.device("cpu")
CRANE = """
<mujoco>
  <worldbody>
    <site name="spot" pos="1 2 .3" euler="10 20 30"/>
    <body name="base" pos="4 3 .5" euler="0 0 30">
      <geom size=".1"/>
      <body name="arm" pos=".2 .1 0" euler="20 0 0">
        <joint name="turn" axis="1 2 3" pos=".1 0 .05" ref="15"/>
        <joint name="shift" type="slide" axis="0 1 1" range="-1 1"/>
        <geom size=".1" pos=".1 0 0"/>
        <body name="head" pos=".2 0 0">
          <joint type="ball" pos=".03 .02 0"/>
          <geom size=".1" pos="0 .2 .1"/>
          <site name="tip" pos="0 .2 .1" euler="40 50 60"/>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
CHEST = """
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body name="chest" pos="3 0 .1">
      <freejoint/>
      <geom type="box" size=".3 .2 .1" mass="4" friction=".4"/>
      <site name="hook" pos="-.3 0 0"/>
      <body name="lid" pos="0 0 .11">
        <joint axis="0 1 0" damping="1"/>
        <geom type="box" size=".3 .2 .01" mass=".1" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
FRAMES = ("crane/spot", "crane/base", "crane/arm", "crane/head", "crane/tip", "chest/lid")


def world(*bodies: str, more: str = "") -> str:
    return f"<mujoco>{more}<worldbody>{''.join(bodies)}</worldbody></mujoco>"


def free_body(name: str) -> str:
    return f'<body name="{name}"><freejoint/><geom size=".1"/><site name="{name}-eye"/></body>'


@pytest.fixture(scope="module")
def scene() -> Scene:
    return build_scene(2, None, things=[Thing("crane", CRANE), Thing("chest", CHEST)])


def unit(quat: Tensor) -> None:
    quat /= quat.norm(dim=1, keepdim=True)


def test_poses_are_those_of_mujoco(scene: Scene) -> None:
    sim = MujocoBatchSimulator(scene.model, 3, 1)
    draws = torch.randn(sim.data.qpos.shape, generator=torch.Generator().manual_seed(0))
    sim.data.qpos.copy_(draws)
    at = scene.robot_qpos
    for start in (3, 22, at + 2, at + 9):
        unit(sim.data.qpos[:, start : start + 4])
    state = read_state(sim, scene)
    for k in range(3):
        data = mujoco.MjData(scene.model)
        data.qpos[:] = sim.data.qpos[k].numpy()
        mujoco.mj_kinematics(scene.model, data)
        for name in FRAMES:
            is_site = name in ("crane/spot", "crane/tip")
            expected = data.site(name) if is_site else data.body(name)
            pose = state.pose(name)
            assert np.allclose(pose.pos[k], expected.xpos, atol=1e-6)
            assert np.allclose(pose.rotation[k].flatten(), expected.xmat, atol=1e-6)


def test_joints_are_read_and_placed_by_name(scene: Scene) -> None:
    assert scene.things is not None
    starts = {
        "crane/turn": torch.tensor([0.5, 1.0]),
        "chest/chest": torch.tensor([[1.0, 2.0, 3.0]]),
    }
    qpos = scene.things.qpos(starts, 2, CPU)
    rest = torch.zeros(2, 2, 6)
    poses = torch.zeros(2, 2, 4)
    layout = Layout(rest[..., :3], poses, rest, torch.zeros(2, 2, 12), *[rest[:, 0, :3]] * 3)
    placed, qvel, _ = pack_layout(scene, layout._replace(things=qpos))
    assert placed.shape == (2, scene.model.nq)
    assert qvel.shape == (2, scene.model.nv)
    assert torch.equal(placed[:, scene.robot_qpos :], qpos)
    file_qpos, _, _ = pack_layout(scene, layout)
    expected = torch.as_tensor(scene.model.qpos0[scene.robot_qpos :], dtype=torch.float32)
    assert torch.equal(file_qpos[:, scene.robot_qpos :], expected.repeat(2, 1))

    state = SceneState.zeros(2, 2, False, things=scene.things)
    state.thing_qpos.copy_(qpos)
    state.rows[-7] = 0.25  # the last of the chest's six velocities and the lid's one
    assert state.joint("crane/turn")[:, 0].tolist() == [0.5, 1.0]
    assert state.joint("crane/shift").tolist() == [[0.0], [0.0]]
    assert state.joint("crane/head").shape == (2, 4)
    heading = [np.cos(1.5), 0.0, 0.0, np.sin(1.5)]
    assert state.joint("chest/chest")[1].tolist() == pytest.approx([1.0, 2.0, 0.1, *heading])
    assert state.joint_rate("chest/chest")[0].tolist() == [0.25, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert state.joint_rate("chest/lid").tolist() == [[0.0], [0.0]]
    with pytest.raises(ConfigError, match=r"unknown joint 'chest/lit'; did you mean chest/lid\?"):
        state.joint("chest/lit")
    with pytest.raises(ConfigError, match="unknown body or site 'crane/hook'"):
        state.pose("crane/hook")
    with pytest.raises(ConfigError, match="the scene has no things"):
        SceneState.zeros(1, 1, False).joint("chest/lid")


def test_a_thing_beyond_the_walls_or_its_joints_breaks_its_world(scene: Scene) -> None:
    limits = Limits(scene, CPU)
    state = SceneState.zeros(4, 2, False, things=scene.things)
    assert limits.are_met(state).all()
    state.joint("chest/chest")[1, 0] = 14.0
    state.joint("crane/shift")[2, 0] = -4.5
    state.joint("crane/head")[3, 0] = torch.nan
    assert limits.are_met(state).tolist() == [True, False, False, False]
    single = state.like(state.rows[:, 1:2])
    assert limits.violation(single) == "chest/chest: x [m] was 14, not -13 to 13"


def test_things_stand_on_the_floor_with_their_own_friction() -> None:
    scene = build_scene(1, None, things=[Thing("chest", CHEST)])
    model = scene.model
    data = mujoco.MjData(model)
    # The robot stays high above. The chest slides at 1 m/s, and its friction of 0.4 stops it.
    data.qpos[2] = 2.9
    data.qvel[model.joint("chest/chest").dofadr[0]] = 1.0
    mujoco.mj_step(model, data, 80)
    way = data.body("chest/chest").xpos[0] - 3.0
    assert way == pytest.approx(1.0 / (2.0 * 0.4 * 9.81), abs=0.01)
    assert data.body("chest/chest").xpos[2] == pytest.approx(0.1, abs=0.002)
    floor_contacts = [{model.geom(geom).name for geom in pair} for pair in data.contact.geom]
    assert floor_contacts.count({"floor", ""}) == len(floor_contacts) > 0


def test_a_rope_ties_every_trunk_to_the_hook() -> None:
    scene = build_scene(2, None, things=[Thing("chest", CHEST, hook="hook", rope=3.0)])
    model = scene.model
    assert model.ntendon == 2
    assert model.tendon_range.tolist() == [[0.0, 3.0]] * 2
    data = mujoco.MjData(model)
    # The chest flies off at 3 m/s, 2.9 m ahead of the robot.
    data.qvel[model.joint("chest/chest").dofadr[0]] = 3.0
    mujoco.mj_step(model, data, 40)
    assert data.ten_length.max() < 3.05 + 0.19
    assert data.qvel[0] > 0.1


def test_a_weld_holds_each_trunk_at_its_own_hook() -> None:
    hooks = '<site name="hook0" pos="-.2 1 0"/><site name="hook1" pos="-.2 -1 0"/>'
    yoke = f'<body name="a" pos="0 0 .3"><freejoint/><geom size=".1"/>{hooks}</body>'
    model = build_scene(2, None, things=[Thing("yoke", world(yoke), hook="hook{}")]).model
    data = mujoco.MjData(model)
    for robot, start in enumerate(model.jnt_qposadr[model.jnt_type == 0][:2]):
        data.qpos[start : start + 3] = (0.0, 1.0 - 2.0 * robot, 0.3)
    data.qvel[model.joint("yoke/a").dofadr[0]] = 1.0
    mujoco.mj_step(model, data, 40)
    for robot in range(2):
        trunk = f"robot{robot}/trunk"
        hook = f"yoke/hook{robot}"
        rear = data.site(f"{trunk}-{hook}")
        assert np.allclose(rear.xpos, data.site(hook).xpos, atol=0.02)
        assert np.allclose(rear.xmat, data.site(hook).xmat, atol=0.02)
        assert data.body(trunk).xpos[0] > 0.02


@pytest.mark.parametrize("lost", [{"absent_robots": (0, 1)}, {"lost_robots": ("absent",)}])
def test_no_robot_on_a_rope_stays_away(lost: dict[str, Any]) -> None:
    cfg = RandomizationCfg(**lost)
    for hook in ("hook", ""):
        scene = build_scene(2, None, things=[Thing("chest", CHEST, hook=hook, rope=3.0)])
        refusal = pytest.raises(ConfigError, match="a tied robot cannot stand 10 m away; leave")
        with refusal if hook else nullcontext():
            Randomization(cfg, scene, (1, 2, 3), 100, Streams(0, 1, "cpu"))


def test_a_thing_lies_on_a_kerb() -> None:
    scene = build_scene(1, None, ground="kerbs", things=[Thing("chest", CHEST)])
    data = mujoco.MjData(scene.model)
    start = scene.model.joint("chest/chest").qposadr[0]
    data.qpos[start : start + 3] = (1.5 * KERB_SPACING, 3.0, 0.2)
    mujoco.mj_step(scene.model, data, 80)
    assert data.body("chest/chest").xpos[2] > 0.1 + 0.5 * KERB_HEIGHTS[0]


def test_an_unknown_hook_is_told_the_sites_of_its_own_thing() -> None:
    things = [Thing("xx", world(free_body("a"))), Thing("x", world(free_body("a")), "hok", 1.0)]
    with pytest.raises(ConfigError, match=r"unknown hook .x/hok. \(allowed: x/a-eye\)"):
        build_scene(1, None, things=things)


PLATE = '<mesh name="plate" file="plate.obj" scale="{0} {0} {0}"/>'
PLATED = '<body name="a"><freejoint/><geom type="mesh" mesh="plate"/></body>'
POLE = world('<body pos="-.2 0 .4"><freejoint/><geom size=".05"/><site name="eye"/></body>')
MOTOR = '<actuator><motor joint="a"/></actuator>'


@pytest.mark.parametrize(
    ("thing", "error"),
    [
        (Thing("x", world(free_body("a"), free_body("b"))), "it has several free joints"),
        (Thing("x", world('<body name="a"><freejoint/></body>')), "give every moving body a geom"),
        (
            Thing("x", world(free_body("a")), "hok", 1.0),
            r"unknown hook .x/hok. \(allowed: x/a-eye\)",
        ),
        (
            Thing("x", world(free_body("a")), "a-eye"),
            "two robots welded to x/a-eye overlap; say hook=",
        ),
        (Thing("x", world(PLATED, more=f"<asset>{PLATE.format(1)}</asset>")), "paths of meshes"),
        (Thing("robot1", world(free_body("a"))), "a word other than floor, goal, robot0, robot1"),
        (Thing("my box", world(free_body("a"))), "a word other than"),
        (Thing("x", "missing.xml"), r"does not read missing.xml \(No such file"),
        (Thing("x", world('<body pos="nan 0 0"><geom size=".1"/></body>')), "it reaches nan m"),
        (Thing("x", world('<body><joint/><joint/><geom size="1"/></body>')), "name every joint"),
    ],
)
def test_an_impossible_thing_is_refused_in_one_line(thing: Thing, error: str) -> None:
    with pytest.raises(ConfigError, match=error) as refusal:
        build_scene(2, None, things=[thing])
    assert "\n" not in str(refusal.value)


def test_two_things_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="thing 'x': the name must be a word other than .*, x"):
        build_scene(1, None, things=[Thing("x", world(free_body("a")))] * 2)


def grid(path: Path, size: int) -> None:
    """Write a bumpy square of ``size`` by ``size`` points, 2 (size - 1)^2 triangles."""
    lines = []
    for x in range(size):
        for y in range(size):
            lines.append(f"v {x / size} {y / size} {0.1 * ((x * y) % 3)}")
    for x in range(size - 1):
        for y in range(size - 1):
            corner = x * size + y + 1
            lines.append(f"f {corner} {corner + size} {corner + 1}")
            lines.append(f"f {corner + 1} {corner + size} {corner + size + 1}")
    path.write_text("\n".join(lines))


def test_a_mesh_is_read_beside_its_file_and_told_if_it_is_fine_or_in_millimetres(
    tmp_path, capsys
) -> None:
    (tmp_path / "meshes").mkdir()
    grid(tmp_path / "meshes" / "plate.obj", 101)
    compiler = '<compiler meshdir="meshes"/>'
    file = tmp_path / "plate.xml"
    file.write_text(world(PLATED, more=f"{compiler}<asset>{PLATE.format(1)}</asset>"))
    scene = build_scene(1, None, things=[Thing("plate", file)])
    assert scene.model.nmesh == 1
    assert "the mesh plate has 20,000 triangles" in capsys.readouterr().err
    file.write_text(world(PLATED, more=f"{compiler}<asset>{PLATE.format(1000)}</asset>"))
    with pytest.raises(ConfigError, match=r"it reaches \d+ m; if its mesh is in millimetres"):
        build_scene(1, None, things=[Thing("wide", file)])


def test_options_of_a_file_are_ignored_without_a_warning(recwarn) -> None:
    options = '<option timestep="0.001" gravity="0 0 1"/><size memory="9M"/>'
    scene = build_scene(1, None, things=[Thing("ball", world(free_body("a"), more=options))])
    assert scene.model.opt.timestep == 0.005
    assert scene.model.opt.gravity.tolist() == [0.0, 0.0, -9.81]
    assert not recwarn


def test_a_thing_has_no_motors_and_no_mocap_bodies(capsys) -> None:
    bodies = '<body name="a"><joint/><geom size=".1"/></body><body mocap="true"/>'
    text = (
        world(bodies)
        .replace("</mujoco>", f"{MOTOR}</mujoco>")
        .replace("<joint/", "<joint name='a'/")
    )
    scene = build_scene(1, None, things=[Thing("motorized", text)])
    assert scene.model.nu == 12
    assert scene.model.nmocap == 1
    assert "'motorized': its actuators and mocap bodies do not move" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["open_door", "pull_sled", "pull_cart", "two_boxes", "carry_plank"]
)
def test_an_example_starts_moves_its_things_and_resumes(name: str, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    with restored_registries():
        importlib.import_module(name)
        for module in (name, "pull_sled"):
            sys.modules.pop(module, None)
        env = make_env(EnvCfg(2, 2), SimCfg("mujoco", "cpu", 1), TASKS[name].cfg(), 0)
    env.reset()
    before = env.state.thing_qpos.clone()
    env.sim.data.qvel[:, env.scene.robot_qvel] = 0.5
    step = env.step(torch.tensor([1.0, 0.0, 0.0]).expand(2, 2, 3))
    assert step.valid.all()
    assert step.obs.isfinite().all()
    assert ((env.state.thing_qpos - before).abs().amax(dim=1) > 0.005).all()
    saved = env.state_dict()
    other = env.step(torch.zeros(2, 2, 3)).obs
    env.load_state_dict(saved)
    assert torch.equal(env.step(torch.zeros(2, 2, 3)).obs, other)


@pytest.mark.slow
@needs_warp
def test_warp_moves_things_as_mujoco_does() -> None:
    warp = LazyModule("mqe.sim.mujoco_warp")
    tetrahedron = '<asset><mesh name="plate" vertex="0 0 0 .4 0 0 0 .4 0 0 0 .4"/></asset>'
    things = [
        Thing("crane", CRANE),
        Thing("chest", CHEST, hook="hook", rope=3.0),
        Thing("pole", POLE, hook="eye"),
        Thing("stone", world(PLATED.replace('"a"', '"a" pos="-2 0 .2"'), more=tetrahedron)),
    ]
    scene = build_scene(1, None, things=things)
    ends = []
    for sim in (
        MujocoBatchSimulator(scene.model, 2, 1),
        warp.MujocoWarpSimulator(scene.model, 2, CPU),
    ):
        qpos = torch.as_tensor(scene.model.qpos0, dtype=sim.data.qpos.dtype).repeat(2, 1)
        qvel = torch.zeros_like(sim.data.qvel)
        qvel[:, scene.model.joint("chest/chest").dofadr[0]] = torch.tensor([0.0, 3.0])
        everywhere = torch.ones(2, dtype=torch.bool)
        sim.write(everywhere, qpos, qvel, torch.zeros(2, 1, 3))
        sim.step(40)
        assert not sim.data.failed.any()
        ends.append(read_state(sim, scene).thing_qpos)
    assert torch.allclose(*ends, atol=2e-3)
    assert (ends[0][1] - ends[0][0]).abs().max() > 0.1
