"""Every simulator keeps the protocol: live views, isolation of broken worlds, exact
continuation.
"""

import gc
import json
import math
import os
import runpy
import signal
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from mqe import cores
from mqe.registry import SIMULATORS, SimCfg, make_simulator
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.sim.simulator import snapshot
from mqe.world.objects import OBJECTS
from mqe.world.scene import DECIMATION, build_scene
from tests.support.paths import DATA, ROOT
from tests.support.pushing import make_task, plain_env
from tests.support.registries import restored_registries
from tests.support.scenes import DEFAULT_JOINT_POS

SCENE = build_scene(1, OBJECTS["cuboid"])
ISAACGYM_PYTHON = os.environ.get("MAPUSH_ISAAC_PYTHON")


def _settings(name, num_threads):
    return SimCfg(name, "cpu", num_threads)


def _start(sim):
    n = sim.num_envs
    qpos = torch.zeros(n, SCENE.model.nq, dtype=torch.float64)
    qpos[:, 0] = -1.0 - 0.1 * torch.arange(n)
    qpos[:, 2] = 0.33
    qpos[:, 3] = 1.0
    qpos[:, 7:19] = torch.tensor(DEFAULT_JOINT_POS)
    qpos[:, 21] = 0.25
    qpos[:, 22] = 1.0
    qvel = torch.zeros(n, SCENE.model.nv, dtype=torch.float64)
    sim.write(
        torch.ones(n, dtype=torch.bool),
        qpos.to(sim.data.qpos.dtype),
        qvel.to(sim.data.qvel.dtype),
        torch.zeros(n, 1, 3),
    )
    sim.data.ctrl[:] = torch.tensor(DEFAULT_JOINT_POS)


def _skip_without(name):
    if name == "warp":
        pytest.importorskip("mujoco_warp")
    if name == "isaacgym" and ISAACGYM_PYTHON is None:
        pytest.skip("needs Isaac Gym: MAPUSH_ISAAC_PYTHON names the Python that has it")


@contextmanager
def example():
    """The simulator of examples/own_simulator.py is registered within."""
    with restored_registries():
        runpy.run_path(str(ROOT / "examples" / "own_simulator.py"))
        yield


@pytest.fixture(params=[*sorted(SIMULATORS), "one_by_one"])
def sim(request):
    _skip_without(request.param)
    with example():
        sim = make_simulator(_settings(request.param, 2), SCENE.model, 4)
    _start(sim)
    yield sim
    sim.close()


def test_a_write_is_the_state_of_the_next_step(sim):
    sim.data.qvel[1, 0] = 1.0
    sim.step(4)
    moved = sim.data.qpos[:, 0] + 1.0 + 0.1 * torch.arange(4)
    assert float(moved[1]) > 0.01
    assert float(moved[[0, 2, 3]].abs().max()) < 5e-3
    assert not sim.data.failed.any()


def test_a_masked_write_leaves_the_other_worlds_alone(sim):
    sim.step(4)
    before = sim.data.qpos.clone()
    mask = torch.tensor([False, True, False, False])
    target = before + 1.0
    sim.write(
        mask, target, sim.data.qvel + 1.0, torch.ones(4, 1, 3, dtype=sim.data.mocap_pos.dtype)
    )
    torch.testing.assert_close(sim.data.qpos[1], target[1])
    torch.testing.assert_close(sim.data.qpos[[0, 2, 3]], before[[0, 2, 3]], rtol=0, atol=0)
    assert sim.data.mocap_pos[:, 0, 0].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert not sim.data.ctrl[1].any()


def test_a_broken_world_does_not_touch_the_others(sim):
    sim.step(2)
    state = sim.state_dict()
    sim.step(4)
    healthy = sim.data.qpos.clone()
    sim.load_state_dict(state)
    sim.data.qpos[2, 0] = torch.nan
    sim.step(4)
    torch.testing.assert_close(sim.data.qpos[[0, 1, 3]], healthy[[0, 1, 3]], rtol=0, atol=0)
    assert not torch.isfinite(sim.data.qpos[2]).all()


def test_state_dict_continues_exactly(sim):
    sim.step(6)
    state = sim.state_dict()
    sim.step(4)
    expected = sim.data.qpos.clone()
    sim.step(4)
    sim.load_state_dict(state)
    sim.step(4)
    torch.testing.assert_close(sim.data.qpos, expected, rtol=0, atol=0)


def test_targets_of_a_control_step_act_as_in_single_steps_also_in_broken_and_resting_worlds():
    targets = torch.tensor(DEFAULT_JOINT_POS) + 0.1 * torch.arange(DECIMATION).view(-1, 1, 1)
    targets = targets.repeat(1, 6, 1)
    targets[2, 5, 0] = torch.nan  # of which MuJoCo warns, and goes on
    results = []
    for is_single in (True, False):
        sim = MujocoBatchSimulator(SCENE.model, 6, 2)
        _start(sim)
        sim.data.qvel[1, 3] = torch.nan
        sim.data.qvel[2, 3] = 1e7  # breaks within the control step
        sim.features.resting[4] = True
        for rows in targets.split(1) if is_single else (targets,):
            sim.step(len(rows), rows)
        results.append(sim.state_dict() | {"forces": sim.data.sensordata.clone()})
        sim.close()
    assert not torch.isfinite(results[0]["qpos"][2]).all()
    assert results[0]["time"][[0, 4, 5]].tolist() == pytest.approx([0.02, 0.0, 0.02])
    for name, values in results[0].items():
        # What is written to a resting world has no effect.
        moving = slice(None) if name != "ctrl" else [0, 1, 2, 3, 5]
        torch.testing.assert_close(
            results[1][name][moving], values[moving], rtol=0, atol=0, equal_nan=True
        )


def test_a_simulator_without_optional_features_runs_an_environment():
    scene = build_scene(2, OBJECTS["cuboid"])
    with example():
        sims = [
            make_simulator(SimCfg(name=name, device="cpu", num_threads=1), scene.model, 3)
            for name in ("one_by_one", "mujoco")
        ]
    env, minimal = (plain_env(sim, scene, make_task(3)) for sim in sims)
    actions = torch.zeros(3, 2, 3)
    for environment in (env, minimal):
        environment.reset()
        environment.step(actions)
    assert torch.equal(env.sim.data.qpos, minimal.sim.data.qpos)
    assert env.grow_buffers() is None
    assert not env.use_graphs
    assert np.array_equal(snapshot(env.sim, 1).xpos, snapshot(minimal.sim, 1).xpos)

    env.pause(torch.tensor([False, True, False]))
    before = env._steps.clone()
    env.step(actions)
    assert (env._steps - before).tolist() == [1, 0, 1]


def test_cpu_results_do_not_depend_on_the_number_of_threads():
    results = []
    for threads in (1, 2, 3):
        sim = MujocoBatchSimulator(SCENE.model, 6, threads)
        _start(sim)
        for k in range(20):
            sim.data.ctrl[:, 1] = 0.8 + 0.02 * k
            sim.step(4)
        results.append(sim.data.qpos.clone())
        sim.close()
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_worlds_take_a_thread_for_each_core_that_may_be_used_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(3)), raising=False)
    monkeypatch.setattr(cores, "cpu_quota", lambda: math.inf)
    model = build_scene(1, None).model
    assert [MujocoBatchSimulator(model, 4, threads)._batch.nthread for threads in (0, 1)] == [3, 1]


@pytest.mark.parametrize("name", sorted(SIMULATORS))
def test_robots_with_their_legs_in_each_others_are_not_torn_apart(name):
    """Three trained robots at the cylinder, in a state with 930 rad/s under MuJoCo's sparse
    solver.
    """
    _skip_without(name)
    state = json.loads((DATA / "entangled.json").read_text())
    scene = build_scene(state["num_robots"], OBJECTS[state["object"]])
    sim = make_simulator(_settings(name, 1), scene.model, 2)
    for field in ("qpos", "qvel", "ctrl"):
        getattr(sim.data, field)[:] = torch.tensor(state[field])
    sim.step(DECIMATION)
    assert 1.0 < float(sim.data.qvel.abs().max()) < 10.0
    sim.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_can_drop_worlds_on_several_threads():
    """It has none of the threads. Waiting for them, it would end by the alarm."""
    worlds = [MujocoBatchSimulator(SCENE.model, 4, 2)]
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        worlds.clear()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
