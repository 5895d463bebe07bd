"""A simulator in its own process: shared numbers, and one line for each kind of loss."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from harl_mapush import config, train
from mapush.extensions.isaacgym import remote_simulator
from mapush.extensions.isaacgym.engines import PYTHON
from mapush.extensions.isaacgym.remote_simulator import EngineSpec, ProcessSimulator
from mqe.config import ConfigError
from mqe.registry import SimCfg, make_simulator
from mqe.sim.simulator import SimulatorError, snapshot
from mqe.world.objects import OBJECTS
from mqe.world.scene import build_scene
from tests.support import mujoco_worker  # noqa: F401, registers the simulator
from tests.support.paths import ROOT, TESTS
from tests.support.scenes import DEFAULT_JOINT_POS

SCENE = build_scene(1, OBJECTS["cuboid"])
FAULTY = EngineSpec(
    "faulty",
    Path(__file__).with_name("faulty_engine.py"),
    "float64",
    True,
    (("fail to allocate memory", "lower env.num_envs"),),
    ("buffer overflow detected",),
)
CPU = torch.device("cpu")
OTHERS = [f"python3.{minor}" for minor in range(8, 15) if minor != sys.version_info.minor]


def other_python() -> str:
    """Return another version of Python with MuJoCo, or skip."""
    for name in (*os.environ.get("MAPUSH_WORKER_PYTHON", "").split(os.pathsep), *OTHERS):
        path = shutil.which(name) if name else None
        if (
            path
            and subprocess.run([path, "-c", "import numpy, mujoco"], capture_output=True).returncode
            == 0
        ):
            return path
    pytest.skip(
        "no Python of another version with numpy and mujoco; MAPUSH_WORKER_PYTHON can name one"
    )


def faulty(
    python: str | None = None, timeouts: tuple[float, float] = (0.4, 10.0), **scene
) -> ProcessSimulator:
    return ProcessSimulator(FAULTY, python, scene, SCENE.model, 2, CPU, timeouts)


def pushing(sim) -> None:
    """Stand the robot with its head in front of the box, and push it against it."""
    n = sim.num_envs
    qpos = torch.as_tensor(SCENE.model.qpos0).repeat(n, 1)
    qpos[:, 0] = -0.91
    qpos[:, 2] = 0.30
    qpos[:, 7:19] = torch.tensor(DEFAULT_JOINT_POS)
    qpos[:, 21] = 0.25
    qvel = torch.zeros(n, SCENE.model.nv, dtype=torch.float64)
    qvel[:, 0] = 1.0 + 0.1 * torch.arange(n)
    sim.write(
        torch.ones(n, dtype=torch.bool), qpos, qvel, torch.zeros(n, 1, 3, dtype=torch.float64)
    )
    sim.data.ctrl[:] = torch.tensor(DEFAULT_JOINT_POS)


def test_lost_contacts_break_all_worlds_of_a_step() -> None:
    sim = faulty(step="overflow")
    assert sim.grow_buffers() is None
    until = time.monotonic() + 60.0
    while not sim.data.failed.any():  # its words may come after its answer
        sim.step(1)
        assert time.monotonic() < until
    assert sim.data.failed.all()
    sim.step(1)
    assert not sim.data.failed.any()
    message = sim.grow_buffers()
    assert message is not None
    assert "smaller env.num_envs" in message
    assert sim.grow_buffers() is None
    sim.close()


@pytest.mark.parametrize("has_rows", [False, True])
def test_the_same_engine_gives_the_same_numbers_in_its_own_process(has_rows: bool) -> None:
    sims = [
        make_simulator(SimCfg(name=name, device="cpu", num_threads=1), SCENE.model, 2)
        for name in ("mujoco", "mujoco_worker")
    ]
    friction = torch.as_tensor(SCENE.model.pair_friction).repeat(2, 1, 1)
    friction[1] *= 0.5
    rows = torch.tensor(DEFAULT_JOINT_POS, dtype=torch.float64) + 0.1 * torch.arange(10.0).view(
        10, 1, 1
    )
    for sim in sims:
        sim.set_field("pair_friction", friction)
        pushing(sim)
        for _ in range(5):
            sim.step(10, rows.expand(10, 2, 12) if has_rows else None)
    local_data = sims[0].data
    theirs = sims[1].data
    for name in ("qpos", "qvel", "ctrl"):
        assert float(getattr(local_data, name).abs().max()) > 0.0
        assert torch.equal(getattr(local_data, name), getattr(theirs, name)), name
    torch.testing.assert_close(theirs.sensordata, local_data.sensordata, rtol=1e-9, atol=1e-9)
    assert not torch.equal(theirs.qpos[0], theirs.qpos[1])
    shown = snapshot(sims[1], 1)
    assert torch.equal(torch.from_numpy(shown.qpos), theirs.qpos[1])
    for sim in sims:
        sim.close()


@pytest.mark.parametrize(
    "name", ["cuboid", "cylinder"]
)  # of a cylinder MuJoCo names the object first in a contact
def test_a_push_is_measured_as_in_the_process_of_the_host(name: str) -> None:
    scene = SCENE if name == "cuboid" else build_scene(1, OBJECTS[name])
    sims = [
        make_simulator(SimCfg(name=name, device="cpu", num_threads=1), scene.model, 1)
        for name in ("mujoco", "mujoco_worker")
    ]
    largest_force = 0.0
    for sim in sims:
        pushing(sim)
        sim.data.qpos[:, 0] -= 0.9 * (name == "cylinder")
    for _ in range(40):
        for sim in sims:
            sim.step(1)
        torch.testing.assert_close(
            sims[1].data.sensordata, sims[0].data.sensordata, rtol=1e-9, atol=1e-9
        )
        largest_force = max(largest_force, float(sims[0].data.sensordata[0, 0]))
    assert largest_force > 20.0  # [N] forwards
    for sim in sims:
        sim.close()


@pytest.mark.slow
def test_an_interpreter_of_another_version_steps_the_same_world(monkeypatch) -> None:
    monkeypatch.setenv(PYTHON, other_python())
    sim = make_simulator(SimCfg(name="mujoco_worker", device="cpu"), SCENE.model, 2)
    assert isinstance(sim, ProcessSimulator)
    pushing(sim)
    sim.step(4)
    state = sim.state_dict()
    expected = []
    largest_force = 0.0
    for _ in range(2):
        sim.load_state_dict(state)
        for _ in range(20):
            sim.step(1)
            largest_force = max(largest_force, float(sim.data.sensordata[0, 0]))
        expected.append(sim.data.qpos.clone())
    assert torch.equal(*expected)
    assert largest_force > 20.0  # [N] on the box
    assert 0.2 < float(expected[0][0, 2]) < 0.35
    sim.close()


def test_tensors_that_are_copies_follow_as_views_do() -> None:
    sims = [
        make_simulator(SimCfg(name="mujoco_worker", device="cpu"), SCENE.model, 2) for _ in range(2)
    ]
    copied = sims[1]
    assert isinstance(copied, ProcessSimulator)
    # as on a GPU
    copied._is_copied = True
    shared = copied._shared
    copied._tensors = {name: tensor.clone() for name, tensor in shared.items()}
    names = ("qpos", "qvel", "ctrl", "mocap_pos", "xfrc_applied", "sensordata", "failed")
    copied.data = copied.data._replace(**{name: copied._tensors[name] for name in names})
    for sim in sims:
        pushing(sim)
        sim.step(4)
        sim.data.qvel[:, 1] = 0.2
        sim.step(4)
    assert torch.equal(sims[0].data.qpos, copied.data.qpos)
    for sim in sims:
        sim.close()


# Losses: one line each, with what the worker said last


def lost(act, within: float = 60.0) -> str:
    start = time.monotonic()
    with pytest.raises(SimulatorError) as error:
        act()
    assert time.monotonic() - start < within
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("/bin/true", "ended in 'start' with exit code 0"),
        ("/bin/cat", "ended in 'start' with exit code 1; its last words: "),
    ],
)
def test_an_interpreter_that_is_none_is_one_line(python: str, says: str) -> None:
    assert says in lost(lambda: faulty(python))


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("/nowhere/python3.8", "no program that can be started; name another"),
        ("/etc/passwd", "no program that can be started; name another"),
    ],
)
def test_an_interpreter_that_cannot_be_started_is_a_mistake_of_the_users(
    python: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        faulty(python)


FULL = (
    "exit code 3; its last words: PhysX: fail to allocate memory 536870912 bytes; lower "
    "env.num_envs"
)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("raise", "failed in 'start': ValueError: the ground is not there (faulty_engine.py:"),
        ("system exit", "failed in 'start': SystemExit: 5 (faulty_engine.py:"),
        ("exit", f"ended in 'start' with {FULL}"),
        ("segfault", "was ended by SIGSEGV in 'start'"),
        ("garbage", "sent no answer in 'start'"),
    ],
)
def test_a_worker_that_does_not_start_is_one_line(kind: str, says: str) -> None:
    line = lost(lambda: faulty(make=kind))
    assert line.startswith(f"sim.name=faulty: its process ({sys.executable}) ")
    assert says in line


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("raise", "failed in 'step': ValueError: the ground is not there (faulty_engine.py:"),
        ("kill", "was ended by SIGKILL in 'step', as the system does when memory runs out"),
        ("segfault", "was ended by SIGSEGV in 'step'"),
        ("exit", f"ended in 'step' with {FULL}"),
        ("hang", "has not answered for 0.4 s in 'step' and was ended"),
        ("hang in C", "has not answered for 0.4 s in 'step' and was ended"),
    ],
)
def test_a_worker_that_is_lost_on_the_way_is_one_line(kind: str, says: str) -> None:
    sim = faulty(second_step=kind)
    sim.step(4)
    line = lost(lambda: sim.step(4))
    assert says in line
    assert lost(lambda: sim.step(4), 0.3) == line  # and again, at once
    sim.close()
    assert not Path(f"/proc/{sim._process.pid}").exists()


def test_a_missing_package_is_named(monkeypatch) -> None:
    monkeypatch.setenv("FAULT", "import")
    assert "ModuleNotFoundError: No module named 'a_package_that_nobody_has'" in lost(faulty)


def test_control_characters_of_an_answer_are_printed_as_escapes(tmp_path, monkeypatch) -> None:
    answer = b'{"refused": "\\u001b]0;x\\n"}'
    peer = tmp_path / "peer.py"
    peer.write_text(
        "import os, sys\n"
        f"os.write(int(sys.argv[2]), {len(answer).to_bytes(4, 'big') + answer!r})\n"
        "os.read(int(sys.argv[2]), 65536)\n"
    )
    monkeypatch.setattr(remote_simulator, "_LAUNCHER", peer)
    assert "refuses: \\x1b]0;x\\n" in lost(faulty)


def test_a_worker_cannot_change_the_length_of_the_shared_memory() -> None:
    """A shorter file would end the host by SIGBUS."""
    sim = faulty(second_step="truncate")
    sim.step(4)
    line = lost(lambda: sim.step(4))
    assert "failed in 'step': PermissionError: [Errno 1] Operation not permitted" in line
    assert bool(sim.data.qpos.isfinite().all())
    sim.close()


@pytest.mark.parametrize("name", ["warp", "isaacgym"])
def test_files_of_0_3_have_the_settings_of_a_process_for_every_simulator(name: str) -> None:
    former = {"python": None, "step_timeout": 4.0, "start_timeout": 300.0, "contact_pairs": None}
    cfg, notices = config.resolve({"sim": {"name": name, **former}}, {})
    assert (cfg.sim, notices) == (SimCfg(name), [])
    with pytest.raises(ConfigError, match="sim.step_timeout"):
        config.resolve({"sim": {"name": name, "step_timeout": 9.0}}, {})


def test_text_on_stdout_cannot_corrupt_the_pipe() -> None:
    sim = faulty(step="chatter")
    for _ in range(3):
        sim.step(4)
    assert float(sim.data.qpos[0, 0]) == SCENE.model.qpos0[0] + 3.0
    sim.close()


def test_a_worker_that_does_not_close_is_ended_silently(monkeypatch) -> None:
    monkeypatch.setattr(remote_simulator, "_CLOSING_S", 0.3)
    sim = faulty(close="hang")
    sim.step(4)
    sim.close()
    sim.close()
    assert sim._process.returncode == -signal.SIGKILL


def test_signals_of_a_scheduler_leave_the_worker_to_its_host() -> None:
    sim = faulty()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(sim._process.pid, number)
    before = sim.data.qpos.clone()
    sim.step(4)
    assert sim._process.poll() is None
    assert not torch.equal(sim.data.qpos, before)  # it still steps
    sim.close()


@pytest.mark.slow
def test_the_worker_ends_with_its_host(tmp_path) -> None:
    code = (
        "import os, threading; "
        "from tests.mapush.extensions.isaacgym.test_remote_simulator import faulty; "
        "sim = faulty(step='hang', timeouts=(60, 60)); "
        "print(sim._process.pid, flush=True); threading.Timer(0.3, os.kill, (os.getpid(), "
        "9)).start(); sim.step(1)"
    )
    path = os.pathsep.join(map(str, (ROOT, TESTS)))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 60.0
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    is_left = Path(f"/proc/{pid}").exists()
    if is_left:
        os.kill(pid, 9)
    assert not is_left


def test_the_files_of_the_worker_are_python_3_8() -> None:
    import ast

    folder = Path(remote_simulator.__file__).parent / "worker"
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        ours = {name for name in imported if name and name.split(".")[0] == "mapush"}
        assert all(name.startswith("mapush.extensions.isaacgym.worker.") for name in ours), path
        packages = {"numpy", "torch", "isaacgym", "mujoco"}
        others = {str(name).split(".")[0] for name in imported - ours} - packages
        assert others <= sys.stdlib_module_names, path


# In a run


def run(out: Path, *more: str) -> int:
    return train.main(
        [
            "--preset",
            "smoke",
            "--sim",
            "mujoco_worker",
            "--device",
            "cpu",
            "--out",
            str(out),
            "--num_envs",
            "4",
            "--set",
            "runner.num_steps=8",
            "--set",
            "network.hidden_sizes=[8]",
            "--set",
            "runner.torch_threads=1",
            "--set",
            "runner.checkpoint_interval=1",
            *more,
        ]
    )


@pytest.mark.slow
def test_a_run_resumes_as_if_it_had_not_stopped(tmp_path) -> None:
    assert run(tmp_path / "whole", "--num_env_steps", "640") == 0
    assert run(tmp_path / "parts", "--num_env_steps", "320") == 0
    assert train.main(["--resume", str(tmp_path / "parts"), "--num_env_steps", "640"]) == 0
    last = [sorted((tmp_path / name / "checkpoints").iterdir())[-1] for name in ("whole", "parts")]
    assert last[0].name == last[1].name
    first, second = (torch.load(folder / "actor_agent0.pt", weights_only=True) for folder in last)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_lost_worker_ends_a_run_with_one_line(tmp_path, monkeypatch, capsys) -> None:
    steps = []
    real = ProcessSimulator.step

    def step(self, decimation, ctrl=None):
        steps.append(1)
        if len(steps) == 20:
            self._process.kill()
        real(self, decimation, ctrl)

    monkeypatch.setattr(ProcessSimulator, "step", step)
    assert run(tmp_path / "run", "--num_env_steps", "6400") == 1
    said = capsys.readouterr().err.strip()
    assert "was ended by SIGKILL in 'step'" in said
    assert "\n" not in said
