"""GPU properties: no waits inside a rollout, one graph per decision, and MuJoCo's physics."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import mapush
from harl_mapush import config
from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.clients.harl.harl_env import to_host
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.runner import Runner, _Clock
from mqe.cuda_graphs import capturing
from mqe.env.environment import MultiAgentEnv
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.sim.simulator import snapshot
from mqe.tasks.walking import WalkingCfg
from mqe.world.scene import DECIMATION
from tests.support.lazy_modules import LazyModule, needs_warp
from tests.support.observing import OnControlStep
from tests.support.rounding import FEW_STEPS

pytestmark = [
    pytest.mark.gpu,
    needs_warp,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
mujoco_warp: Any = LazyModule("mqe.sim.mujoco_warp")
NUM_ENVS = 64
DEVICES = [f"cuda:{index}" for index in range(min(torch.cuda.device_count(), 2))] or ["cuda:0"]


@pytest.fixture(params=DEVICES)
def runner(request):
    cfg, _ = config.resolve(
        config.load_preset("cuboid_happo"),
        {
            "env": {"num_envs": NUM_ENVS},
            "runner": {"num_steps": 8},
            "sim": {"device": request.param},
        },
    )
    env = make_env(cfg.env, cfg.sim, cfg.task, 1)
    algorithm = ALGORITHMS[cfg.algorithm.name].cls(
        cfg.algorithm, cfg.network, env.spec, env.device, 1
    )
    yield Runner(env, algorithm, cfg.runner)
    env.close()


def actions_of(env: MultiAgentEnv) -> torch.Tensor:
    return torch.full((env.num_envs, env.num_agents, env.spec.action_size), 0.5, device=env.device)


def test_a_rollout_waits_for_nothing(runner):
    runner.start()
    runner.collect()
    torch.cuda.set_sync_debug_mode("error")
    try:
        runner.collect()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(runner.experience.valid.mean()) == 1.0
    assert runner.experience.rewards.device == runner.env.device
    metrics = runner.update()
    assert all(bool(torch.isfinite(value)) for value in metrics.values())


def test_a_whole_decision_is_one_graph_that_does_what_the_step_does(runner):
    env = runner.env
    env.reset()
    env.use_graphs = False
    for _ in range(3):
        env.step(actions_of(env))
    state = env.state_dict()
    expected = env.step(actions_of(env))
    qpos = env.sim.data.qpos.clone()

    graph = torch.cuda.CUDAGraph()
    actions = actions_of(env)
    with capturing(graph, env.device):
        step = env._step(actions)
    env.load_state_dict(state)
    graph.replay()
    torch.testing.assert_close(env.sim.data.qpos, qpos, rtol=0, atol=1e-4)
    torch.testing.assert_close(step.reward, expected.reward, rtol=0, atol=1e-3)
    torch.testing.assert_close(step.obs, expected.obs, rtol=0, atol=1e-3)


def test_laps_are_the_devices_own(runner):
    """The timer also works on a device other than the current one, and times this device's work
    only.
    """
    device = runner.env.device
    cycles = 100_000_000
    clock = _Clock(device)
    for _ in range(2):
        with torch.cuda.device(device):
            torch.cuda._sleep(cycles)
        clock.lap()
    clock.lap()
    first, second, nothing = clock.read()
    # Other programs on the GPU lengthen a lap, and none shortens it. No GPU has 4 GHz.
    assert min(first, second) > cycles / 4e9
    assert nothing < 0.1 * min(first, second)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_programs_keep_to_their_gpu(tmp_path):
    """A context alone takes half a GiB: eight trainings would take four of the first GPU's."""
    run = tmp_path / "run"
    device = ("--device", DEVICES[-1], "--num_envs", str(NUM_ENVS))
    for program, words in (
        ("train", ("--preset", "cuboid_happo", "--num_env_steps", "20000", "--out", str(run))),
        ("test", ("--checkpoint", str(run), "--num_episodes", str(NUM_ENVS), "--team_only")),
    ):
        code = (
            f"import sys, torch\nfrom harl_mapush import {program}\nassert "
            f"{program}.main(sys.argv[1:]) == 0\n"
        )
        code += "print([torch._C._cuda_hasPrimaryContext(index) for index in range(2)])"
        command = [sys.executable, "-c", code, *device, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[False, True]", program


def test_one_control_step_from_a_copied_state_is_mujocos(runner):
    env = runner.env
    env.reset()
    for _ in range(25):
        env.step(actions_of(env))
    sim = env.sim
    host = MujocoBatchSimulator(sim.model, NUM_ENVS, 2)
    for name, values in sim._fields.items():
        host.set_field(name, values.cpu().double())
    for name in ("qpos", "qvel", "ctrl", "mocap_pos"):
        getattr(host.data, name).copy_(getattr(sim.data, name).cpu())
    sim._warmstart.zero_()
    sim.data.ctrl.add_(0.05)
    host.data.ctrl.add_(0.05)
    sim.step(DECIMATION)
    host.step(DECIMATION)
    error = (sim.data.qpos.cpu().double() - host.data.qpos).abs().amax(dim=1)
    host.close()
    assert float(error.median()) < 1e-5
    assert float(error.max()) < 1e-3


def test_who_watches_sees_every_control_step_of_decisions_that_are_replayed(runner):
    env = runner.env
    heights = []
    env.reset()
    for _ in range(4):
        env.step(actions_of(env))
    with env.observed_by(OnControlStep(lambda: heights.append(snapshot(env.sim, 0).qpos[2]))):
        env.step(actions_of(env))
    assert len(heights) == env.decision_period
    env.step(actions_of(env))
    assert float(env.state.robot_pos[0, 0, 2]) == pytest.approx(float(env.sim.data.qpos[0, 2]))


def test_an_environment_that_goes_takes_nothing_of_another_ones(runner):
    env = runner.env
    other = make_env(EnvCfg(num_envs=NUM_ENVS), SimCfg(device=str(env.device)), env.task.cfg, 1)
    for environment in (env, other):
        environment.reset()
        for _ in range(4):
            environment.step(actions_of(environment))
    other.close()
    del other, environment
    friction = torch.tensor(env.sim.model.geom_friction, device=env.device).expand(NUM_ENVS, -1, -1)
    env.sim.set_field("geom_friction", friction)
    for _ in range(4):
        assert bool(env.step(actions_of(env)).valid.all())


def test_steps_follow_torchs_stream(runner):
    """The stream may change between eager, recorded and replayed steps."""
    env = runner.env
    streams = [torch.cuda.Stream(runner.env.device) for _ in range(2)]
    env.reset()
    start = env.state_dict()
    actions = actions_of(env)
    expected = [env.step(actions).obs.clone() for _ in range(2)][-1]
    torch.cuda.synchronize(env.device)
    for _ in range(2):
        with torch.cuda.stream(streams[0]):
            env.load_state_dict(start)
            env.step(actions)
        streams[1].wait_stream(streams[0])
        with torch.cuda.stream(streams[1]):
            obs = env.step(actions).obs
        torch.cuda.synchronize(env.device)
        torch.testing.assert_close(obs, expected, rtol=0, atol=1e-2)


def test_buffers_grow_on_any_stream_and_nothing_is_lost(runner):
    sim = runner.env.sim
    runner.env.reset()
    expected = {name: values.clone() for name, values in sim.state_dict().items() if name != "size"}
    with torch.cuda.device(sim.device):
        torch.cuda.synchronize()
        torch.cuda._sleep(1_000_000_000)  # cycles
        with torch.cuda.stream(torch.cuda.Stream()):
            sim._resize(mujoco_warp.Capacity(sim.size.contacts + 10, sim.size.rows + 10))
        torch.cuda.synchronize()
    for name, values in expected.items():
        assert torch.equal(sim.state_dict()[name], values), name


def test_buffers_grow_and_the_graph_is_captured_anew(walking):
    env = make_env(EnvCfg(NUM_ENVS, 1), SimCfg(device=DEVICES[-1]), WalkingCfg(), 1)
    assert isinstance(env.sim, mujoco_warp.MujocoWarpSimulator)
    env.sim._make_data(mujoco_warp.Capacity(contacts=16, rows=8))  # It uses up to 12.
    env.reset()
    actions = actions_of(env)
    valid = [bool(env.step(actions).valid.all()) for _ in range(50)]
    assert not all(valid)
    notes = []
    for _ in range(4):
        notes.append(env.grow_buffers())
        valid = [bool(env.step(actions).valid.all()) for _ in range(50)]
    assert notes[0] is not None
    assert "NEFC" in notes[0]
    assert all(valid)
    assert env.sim.lost_contacts() == 0
    env.close()


@pytest.mark.parametrize("device", DEVICES)
def test_results_come_to_the_host_in_one_transfer(device):
    given = (
        torch.rand(5, 2, 3, device=device),
        torch.rand(5, device=device) > 0.5,
        torch.rand(4, 5, device=device).t(),
    )
    expected = [tensor.float().cpu().numpy() for tensor in given]
    to_host(*given)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            arrays = to_host(*given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(caught) <= 1
    to_host(*(tensor.float() + 1.0 for tensor in given))
    assert all(np.array_equal(array, want) for array, want in zip(arrays, expected, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_harls_client_has_one_transfer_each_way(device):
    """Episode ends included, with their saved metrics."""
    pytest.importorskip("gymnasium", reason="spaces of HARL's contract are an extra")
    settings = {"n_threads": 4, "num_agents": 2, "seed": 1, "episode_length_s": 0.2}
    env = mapush.MAPushEnv(settings | {"device": device})
    env.reset()
    actions = np.zeros((4, 2, 3), np.float32)
    for _ in range(5):
        env.step(actions)
    before = len(env.episode_success)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(20):
                env.step(actions)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(env.episode_success) > before
    assert sum("synchronizing" in str(one.message) for one in caught) <= 2 * 20
    env.close()


def test_the_fused_adam_of_a_gpu_steps_as_that_of_a_cpu():
    """Clipped, with a penalty, and once without an effect."""
    weights = torch.randn(300)
    flats = []
    for device in ("cpu", "cuda:0"):
        layer = torch.nn.Linear(299, 1)
        with torch.no_grad():
            layer.weight.copy_(weights[1:].view(1, -1))
            layer.bias.copy_(weights[:1])
        adam = FlatAdam(layer.to(device), 1e-2, 1e-8, 0.1, fuses=True)
        assert adam.is_fused == (device != "cpu")
        x = torch.linspace(-1.0, 1.0, 299, device=device)
        for enabled in (1.0, 0.0, 1.0, 1.0):
            adam.set_gradient((layer(x) ** 2).sum())
            adam.step(0.5, torch.tensor(enabled, device=device))
        assert float(adam.step_count) == 3.0
        flats.append(adam.flat.cpu())
    assert torch.allclose(flats[0], flats[1], rtol=1e-5, atol=FEW_STEPS)
    assert not torch.allclose(flats[0], weights, atol=1e-3)
