"""MuJoCo Warp, on its CPU device, against MuJoCo: equal worlds and joint targets, equal rewards
and endings.
"""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any, NamedTuple

import mujoco
import pytest
import torch
from torch import Tensor

from mqe.controllers.blocks import ActiveWorlds
from mqe.env.environment import MultiAgentEnv
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.tasks.entry import EnvCfg
from mqe.tasks.push import PushCfg, PushTask
from mqe.tasks.task import Task
from mqe.tasks.walking import WalkingCfg
from mqe.world.fields import floor_friction_fields, object_friction_fields
from mqe.world.objects import OBJECTS
from mqe.world.scene import (
    DECIMATION,
    STEP_DT,
    Scene,
    build_scene,
)
from mqe.world.state import SceneState
from mqe.world.streams import Streams
from tests.support import strolling
from tests.support.lazy_modules import LazyModule, needs_warp
from tests.support.obstacles import obstacle_scene, slide
from tests.support.pushing import plain_env
from tests.support.rounding import FEW_STEPS
from tests.support.scenes import DEFAULT_JOINT_POS
from tests.support.scenes import team as robots_of
from tests.support.strolling import STROLL

pytestmark = needs_warp
mjw: Any = LazyModule("mujoco_warp")
wp: Any = LazyModule("warp")
mujoco_warp: Any = LazyModule("mqe.sim.mujoco_warp")

CPU = torch.device("cpu")
NUM_ENVS = 4
NUM_STEPS = 50
LIES = 20  # the step at which the last world lies down
# Alone on the floor a robot falls sooner.
WALKING_STEPS = 34
WALKING_LIES = 4


class Recording:
    """A controller with recorded joint targets (T, N, A, 12), one per control step. It ignores
    commands.
    """

    def __init__(self, targets: Tensor) -> None:
        self._targets = iter(targets)

    def begin(self, mask: Tensor) -> None: ...

    def command(self, velocity: Tensor) -> None: ...

    def targets(self, state: SceneState) -> Tensor:
        return next(self._targets)

    def use_blocks(self, worlds: ActiveWorlds) -> None: ...

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


def trot(num_robots: int, lies: int = LIES) -> Tensor:
    """Joint targets (T, N, A, 12) for a trot on the spot, with a phase per robot. The last world
    lies down at step ``lies``.
    """
    time = STEP_DT * torch.arange(NUM_STEPS).view(-1, 1, 1, 1)
    robot = torch.arange(NUM_ENVS * num_robots).view(NUM_ENVS, num_robots, 1)
    leg = torch.tensor([0.0, 0.5, 0.5, 0.0]).repeat_interleave(3)
    lift = torch.sin(2.0 * math.pi * (2.0 * time + 0.13 * robot + leg)).clamp(min=0.0)
    targets = torch.tensor(DEFAULT_JOINT_POS) + torch.tensor([0.0, 0.3, -0.6] * 4) * lift
    targets[lies:, -1] = torch.tensor([0.1, 1.4, -2.3] * 4)
    return targets


def worlds_of(
    name: str, num_robots: int | None = None
) -> tuple[Scene, Task, dict[str, Tensor], Tensor]:
    """Return scene, task, fields and actions (T, N, A, U): ``walking``, or the pushed object."""
    seed = 14 if name == "cylinder" else 3  # with a fall
    streams = Streams(seed, NUM_ENVS, CPU)
    spread = torch.linspace(0.0, 1.0, NUM_ENVS)
    if name == "walking":
        scene, task, _ = STROLL.make(WalkingCfg(), EnvCfg(NUM_ENVS, 1), CPU, streams)
        task._controller = Recording(trot(1, WALKING_LIES).repeat(2, 1, 1, 1))
        fields = floor_friction_fields(scene, 0.45 + 0.25 * spread)
        return scene, task, fields, torch.zeros(WALKING_STEPS, NUM_ENVS, 1, 3)
    obj = OBJECTS[name]
    team = num_robots or obj.num_agents
    scene = build_scene(team, obj)
    cfg = PushCfg(object=name, spawn="separated", roll_limit=0.15)  # lying down is a fall
    task = PushTask(cfg, NUM_ENVS, robots_of(team), streams, Recording(trot(team)))
    low, high = obj.friction
    fields = object_friction_fields(scene, low + (high - low) * spread)
    return scene, task, fields, torch.zeros(NUM_STEPS, NUM_ENVS, team, 3)


class Run(NamedTuple):
    """Results from one simulator's run with a recording."""

    ctrl: Tensor  # (T, N, nu)
    qpos: Tensor  # (T, N, nq)
    reward: Tensor  # (T, N, A)
    terminated: Tensor  # (T, N, A)


def make_sim(make: type, scene: Scene, fields: dict[str, Tensor], size: Any = None) -> Any:
    """A simulator of a scene with its per-world fields."""
    if make is mujoco_warp.MujocoWarpSimulator:
        sim = mujoco_warp.MujocoWarpSimulator(scene.model, NUM_ENVS, CPU, size)
    else:
        sim = MujocoBatchSimulator(scene.model, NUM_ENVS, 1)
    for field, values in fields.items():
        sim.set_field(field, values)
    return sim


def run(name: str, make: type) -> Run:
    """Play the ``worlds_of`` recording on a simulator."""
    scene, task, fields, actions = worlds_of(name)
    sim = make_sim(make, scene, fields)
    env = plain_env(sim, scene, task)
    env.reset()
    rows = []
    for action in actions:
        step = env.step(action)
        assert bool(step.valid.all())
        rows.append(
            (
                sim.data.ctrl.double().clone(),
                sim.data.qpos.double().clone(),
                step.reward,
                step.terminated.clone(),
            )
        )
    if make is mujoco_warp.MujocoWarpSimulator:
        assert sim.lost_contacts() == 0
    env.close()
    return Run(*(torch.stack(column) for column in zip(*rows, strict=True)))


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("cuboid", "tblock", "cylinder")]


@pytest.mark.parametrize("name", ["walking", *SLOW])
def test_warp_follows_mujoco(name):
    ours = run(name, mujoco_warp.MujocoWarpSimulator)
    theirs = run(name, MujocoBatchSimulator)
    torch.testing.assert_close(ours.ctrl, theirs.ctrl, rtol=0, atol=FEW_STEPS)
    error = (ours.qpos - theirs.qpos).abs().amax(dim=(0, 2))
    assert float(error.median()) < 1e-5
    assert float(error.max()) < 1e-3
    torch.testing.assert_close(ours.reward, theirs.reward, rtol=0, atol=1e-3)
    assert torch.equal(ours.terminated, theirs.terminated)
    assert bool(theirs.terminated[:-5].any())  # a fall, and what came after it


def press(name: str, make: type) -> tuple[Tensor, Tensor]:
    """Place robots nose to the object, at a speed, and step once. Return qpos (N, nq) and contact
    forces (N, 3 A).
    """
    scene, _, fields, _ = worlds_of(name, 2)
    sim = make_sim(make, scene, fields)
    qpos = torch.as_tensor(scene.model.qpos0).repeat(NUM_ENVS, 1)
    qvel = torch.zeros(NUM_ENVS, scene.model.nv, dtype=torch.float64)
    for robot, side in ((0, -1.0), (1, 1.0)):
        # [m] the head's and the object's
        at = 19 * robot
        reach = 0.29 + max(x for x, _ in OBJECTS[name].outline)
        qpos[:, at] = side * (reach - 0.002 * (1 + torch.arange(NUM_ENVS)))
        qpos[:, at + 2] = 0.3
        qpos[:, at + 3 : at + 7] = torch.tensor(
            [1.0, 0.0, 0.0, 0.0] if side < 0 else [0.0, 0.0, 0.0, 1.0]
        )
        qpos[:, at + 7 : at + 19] = torch.tensor(DEFAULT_JOINT_POS)
        qvel[:, 18 * robot] = -0.5 * side
    everywhere = torch.ones(NUM_ENVS, dtype=torch.bool)
    sim.write(
        everywhere,
        qpos.to(sim.data.qpos),
        qvel.to(sim.data.qvel),
        torch.zeros_like(sim.data.mocap_pos),
    )
    sim.data.ctrl[:] = torch.tensor(DEFAULT_JOINT_POS * 2)
    sim.step(1)  # contacts are stiff: in a few steps some have bounced off
    result = sim.data.qpos.double().clone(), sim.data.sensordata.double().clone()
    sim.close()
    return result


@pytest.mark.parametrize("name", ["cuboid", "tblock", "cylinder"])
def test_one_step_in_contact_agrees(name):
    (ours, our_force) = press(name, mujoco_warp.MujocoWarpSimulator)
    (theirs, their_force) = press(name, MujocoBatchSimulator)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    torch.testing.assert_close(our_force, their_force, rtol=1e-2, atol=0.1)
    assert float(their_force.abs().amax(dim=1).min()) > 1.0  # [N]


PENDULUM = """
<mujoco>
  <option timestep="0.005" integrator="implicitfast"/>
  <worldbody>
    <body name="pendulum">
      <joint name="hinge" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.02"/>
    </body>
  </worldbody>
  <actuator><position joint="hinge" kp="0.1" kv="0.05"/></actuator>
  <sensor><jointvel joint="hinge"/></sensor>
</mujoco>
"""


@pytest.mark.parametrize(
    "damped", ["nowhere", "in the model", "in a field", "by a fluid", "by less weight"]
)
def test_what_a_step_leaves_out_changes_nothing(damped):
    spec = mujoco.MjSpec.from_string(PENDULUM)
    spec.option.viscosity = 0.1 if damped == "by a fluid" else 0.0
    spec.joint("hinge").damping[0] = 0.02 if damped == "in the model" else 0.0
    spec.body("pendulum").gravcomp = 0.5 if damped == "by less weight" else 0.0
    sims = [mujoco_warp.MujocoWarpSimulator(spec.compile(), NUM_ENVS, CPU) for _ in range(2)]
    for sim in sims:
        if damped == "in a field":
            sim.set_field("dof_damping", 0.01 * torch.arange(1.0, 1.0 + NUM_ENVS).unsqueeze(1))
        sim.data.qpos.fill_(1.0)
    ours, whole = sims
    num_steps = 3
    for _ in range(num_steps):
        ours.step(DECIMATION)
        with wp.ScopedDevice("cpu"):
            for _ in range(DECIMATION):
                mjw.step(whole._model, whole._data)
    for name in ("qpos", "qvel", "sensordata"):
        assert torch.equal(getattr(ours.data, name), getattr(whole.data, name)), name
    assert float(ours.data.sensordata.abs().min()) > 0.0
    free = mujoco.MjSpec.from_string(PENDULUM).compile()
    data = mujoco.MjData(free)
    data.qpos[:] = 1.0
    mujoco.mj_step(free, data, num_steps * DECIMATION)
    assert (abs(float(ours.data.qpos[-1, 0]) - data.qpos[0]) < 1e-4) == (damped == "nowhere")


def test_a_stream_has_one_object_of_warps_for_ever(monkeypatch):
    made = []
    monkeypatch.setattr("mqe.sim.mujoco_warp._STREAMS", {})
    monkeypatch.setattr("warp.stream_from_torch", lambda stream: made.append(stream) or object())
    first, other = (
        SimpleNamespace(device=torch.device("cuda", index), cuda_stream=7) for index in range(2)
    )
    again = SimpleNamespace(device=torch.device("cuda", 0), cuda_stream=7)
    name = mujoco_warp._warps_name(first)
    assert mujoco_warp._warps_name(again) is name
    assert mujoco_warp._warps_name(other) is not name
    assert made == [first, other]


def test_everything_that_acts_without_being_driven_is_known():
    model = mujoco.MjSpec.from_string(PENDULUM).compile()
    kinds = re.compile(
        r"(jnt|dof|tendon|actuator)_(stiffness|damping)(poly)?|(body|geom|pair)_(gravcomp|adhesion)"
    )
    assert {name for name in dir(model) if kinds.fullmatch(name)} == set(
        mujoco_warp._PASSIVE_FIELDS
    )


def test_a_control_step_leaves_out_what_it_can_and_asks_for_warps_own_jacobian(monkeypatch):
    sim = mujoco_warp.MujocoWarpSimulator(
        mujoco.MjSpec.from_string(PENDULUM).compile(), NUM_ENVS, CPU
    )
    sim.step(DECIMATION)  # loads the kernels
    forward = mjw.forward
    seen = []

    def watched(model: Any, data: Any) -> None:
        seen.append(model.opt.disableflags)
        if len(seen) == DECIMATION + 1:
            raise KeyboardInterrupt
        forward(model, data)

    monkeypatch.setattr("mujoco_warp.forward", watched)
    sim.step(DECIMATION)
    bit = mujoco.mjtDisableBit
    assert [bool(flags & bit.mjDSBL_SENSOR) for flags in seen] == [True] * (DECIMATION - 1) + [
        False
    ]
    assert all(flags & bit.mjDSBL_SPRING and flags & bit.mjDSBL_DAMPER for flags in seen)
    with pytest.raises(KeyboardInterrupt):
        sim.step(DECIMATION)
    # What was interrupted stays whole.
    assert not sim._model.opt.disableflags & (bit.mjDSBL_SENSOR | bit.mjDSBL_DAMPER)
    scene = build_scene(3, OBJECTS["cylinder"]).model
    assert mujoco_warp.known_to_warp(scene).opt.jacobian == mujoco.mjtJacobian.mjJAC_AUTO
    assert scene.opt.jacobian == mujoco.mjtJacobian.mjJAC_DENSE
    sim.close()


def eight_boxes() -> mujoco.MjModel:
    """Eight free boxes in a row on a plane, each on four corners: 8 x 4 contacts of 4 rows."""
    spec = mujoco.MjSpec()
    spec.option.timestep = 0.005
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    box = mujoco.mjtGeom.mjGEOM_BOX
    spec.worldbody.add_geom(type=plane, size=(20.0, 20.0, 0.1), contype=1, conaffinity=0)
    for i in range(8):
        body = spec.worldbody.add_body(pos=(float(i), 0.0, 0.249))
        body.add_freejoint()
        body.add_geom(type=box, size=(0.25, 0.25, 0.25), contype=0, conaffinity=1)
    return spec.compile()


def test_eight_boxes_in_default_buffers_are_an_error_and_in_ours_they_stand():
    model = eight_boxes()
    defaults = mjw.make_data(model, 1)
    sim = mujoco_warp.MujocoWarpSimulator(
        model, 2, CPU, mujoco_warp.Capacity(defaults.naconmax, defaults.njmax)
    )
    sim.step(DECIMATION)
    assert sim.usage().rows == 128 > defaults.njmax
    assert sim.data.failed.tolist() == [True, True]
    assert sim.lost_contacts() == 2
    sim.close()

    sim = mujoco_warp.MujocoWarpSimulator(model, 2, CPU)
    for _ in range(10):  # without a floor it would fall 0.2 m
        sim.step(DECIMATION)
    assert sim.lost_contacts() == 0
    assert not sim.data.failed.any()
    assert float(sim.data.qpos.view(2, 8, 7)[..., 2].min()) > 0.24
    sim.close()


def test_what_follows_from_masses_is_set_as_in_mujoco():
    model = eight_boxes()
    masses = torch.as_tensor(model.body_mass) * torch.tensor([[1.0], [3.0]])
    ours = mujoco_warp.MujocoWarpSimulator(model, 2, CPU)
    theirs = MujocoBatchSimulator(model, 2, 1)
    for sim in (ours, theirs):
        sim.set_field("body_mass", masses)
    for name in ("body_invweight0", "dof_invweight0", "body_subtreemass"):
        expected = torch.as_tensor(theirs._batch.expanded(name))
        torch.testing.assert_close(ours._fields[name].double(), expected)
        assert not torch.equal(expected[0], expected[1])
    for sim in (ours, theirs):
        sim.close()


def worlds_with_small_buffers() -> tuple[MultiAgentEnv, Tensor]:
    """Return worlds with room for 16 contacts and 15 rows, and actions."""
    scene, task, fields, actions = worlds_of("walking")
    capacity = mujoco_warp.Capacity(contacts=16, rows=15)
    sim = make_sim(mujoco_warp.MujocoWarpSimulator, scene, fields, capacity)
    return plain_env(sim, scene, task), actions


def test_buffers_grow_between_rollouts_and_the_run_continues(monkeypatch):
    monkeypatch.setattr(strolling, "LYING_HEIGHT", 0.0)  # a trunk on the floor ends nothing
    env, actions = worlds_with_small_buffers()
    env.reset()
    assert env.grow_buffers() is None
    valid = torch.stack([env.step(action).valid for action in actions[:26]])
    assert not valid.all()
    assert int(env.num_failed) == int((~valid).sum())
    before = env.sim.data.qpos.clone()
    views = env.sim.data
    note = env.grow_buffers()
    assert env.sim.data is not views
    assert torch.equal(env.sim.data.qpos, before)
    assert note is not None
    grown = (
        r"contact buffers overflowed in 1 of 4 worlds \(NEFC\); "
        r"grown from 16 contacts and 15 rows .*"
    )
    assert re.fullmatch(grown, note)
    assert env.grow_buffers() is None
    assert all(bool(env.step(action).valid.all()) for action in actions[26:32])
    assert env.sim.lost_contacts() == 0
    state = env.state_dict()
    other, _ = worlds_with_small_buffers()
    other.reset()
    other.load_state_dict(state)  # a run that goes on need not lose the same contacts again
    assert other.sim.size == env.sim.size
    assert torch.equal(other.sim.data.qpos, env.sim.data.qpos)
    for environment in (env, other):
        environment.close()
        environment.close()


def test_lost_contacts_that_no_buffer_prevents_are_reported_and_nothing_is_replaced():
    scene, task, fields, actions = worlds_of("walking")
    env = plain_env(make_sim(mujoco_warp.MujocoWarpSimulator, scene, fields), scene, task)
    env.reset()
    step = env.sim.step
    views = env.sim.data

    def overflowing(decimation, ctrl):
        env.sim._overflow[1] |= int(mujoco_warp.OverflowType.NVMAX)
        step(decimation, ctrl)

    env.sim.step = overflowing
    assert env.step(actions[0]).valid.tolist() == [True, False, True, True]
    assert env.grow_buffers() == "1 of 4 worlds lost contacts (NVMAX), which no larger buffer mends"
    assert env.sim.data is views
    assert env.grow_buffers() is None
    env.close()


def test_a_compilation_that_takes_its_time_is_announced(monkeypatch, caplog):
    monkeypatch.setattr("mqe.sim.warp_kernels._PATIENCE_S", 0.0)
    caplog.set_level("INFO", logger="mqe")
    scene, _, fields, _ = worlds_of("walking")
    sim = make_sim(mujoco_warp.MujocoWarpSimulator, scene, fields)
    sim.step(DECIMATION)
    sim.step(DECIMATION)
    sim.close()
    first, *_, last = [record.getMessage() for record in caplog.records]
    assert first.startswith("compiling the physics kernels for cpu, once on a machine: 1 of")
    assert last.startswith("physics kernels are ready after")


@pytest.mark.slow
def test_obstacles_stop_an_object_as_in_mujoco():
    scene = obstacle_scene()
    expected, _ = slide(MujocoBatchSimulator(scene.model, NUM_ENVS, 1), scene)
    furthest, touched = slide(mujoco_warp.MujocoWarpSimulator(scene.model, NUM_ENVS, CPU), scene)
    assert touched.tolist() == [False, True, True, True]
    torch.testing.assert_close(furthest, expected, rtol=0.0, atol=5e-3)
