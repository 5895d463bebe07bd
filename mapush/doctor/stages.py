"""The doctor's stages, from versions to a film. Each uses the results of earlier ones."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import mujoco
import torch

from harl_mapush.durations import format_duration
from harl_mapush.memory_plan import GIB, check_memory, describe, plan_memory
from harl_mapush.runs import resume
from harl_mapush.runs.run_folder import CONFIG, check_new_run_dir
from mapush.doctor import frame_checks
from mapush.doctor import tiny_training as training
from mapush.doctor.checkup import Checkup
from mapush.doctor.stage import REPORT, Stage, StageError, StageSkippedError, env_of, finite
from mqe.config import ConfigError, dump_yaml, install, to_dict
from mqe.cores import num_cores
from mqe.env.environment import MultiAgentEnv
from mqe.registry import resolve_sim
from mqe.vec_env import TimeStep
from mqe.viewer.offscreen import choose_backend
from mqe.viewer.video import record

NUM_DECISIONS = training.NUM_DECISIONS
NUM_WORLDS = 1000
NUM_WORLDS_CPU = 64
NUM_ITERATIONS = 3  # of a resumed training, of which the last tells the speed
RESULTS = "results"  # the default folder of runs (harl_mapush.runs.run_folder.default_run_dir)
_PACKAGES = ("torch", "mujoco", "mujoco-warp", "warp-lang", "numpy")
# Matches a requirement with a lower bound.
_NEEDS = re.compile(r"(?P<name>[\w.-]+).*?(>=|==|~=)\s*(?P<bound>\d+(\.\d+)*)")


def check_versions(checkup: Checkup) -> str:
    """Check the versions: Python, CUDA and packages must fit together."""
    versions = checkup.versions
    versions["platform"] = platform.platform()
    versions["python"] = platform.python_version()
    for package in _PACKAGES:
        versions[package] = _installed(package)
    # torch.__version__ includes the build, which the package's metadata may leave out.
    versions["torch"] = torch.__version__
    versions["torch_cuda"] = torch.version.cuda
    driver = driver_version()
    versions["driver_cuda"] = None if driver is None else f"{driver // 1000}.{driver % 1000 // 10}"

    if not (3, 11) <= sys.version_info[:2] < (3, 14):
        raise StageError(
            f"Python {versions['python']} is not supported", "use Python 3.11, 3.12 or 3.13"
        )
    if not mujoco.__version__.startswith("4."):
        raise StageError(
            f"MuJoCo {mujoco.__version__} is not supported", "pip install 'mujoco>=4.0,<5'"
        )
    ours = mujoco.__version__
    warps = versions["mujoco-warp"]
    if warps is not None and warps.split(".")[:2] != ours.split(".")[:2]:
        raise StageError(
            f"mujoco-warp {warps} is not for MuJoCo {ours}", f"pip install mujoco-warp=={ours}"
        )
    if warps is not None:
        _check_needs("mujoco-warp")

    versions["warp_cuda"] = None if driver is None or warps is None else warp_cuda()
    if checkup.cfg.sim.device != "cpu":
        _check_cuda("torch", versions)
        _check_cuda("warp", versions)

    line = ", ".join(f"{name} {value}" for name, value in versions.items() if value is not None)
    if driver is not None and versions["torch_cuda"] is None:
        line += "; this torch is built for CPUs only: to use the GPU, install torch's CUDA build"
    elif driver is not None and versions["mujoco-warp"] is None:
        line += f"; to use the GPU, {install('gpu')}"
    return line


def check_device(checkup: Checkup) -> str:
    """Resolve simulator and device."""
    checkup.sim_name, checkup.device = resolve_sim(checkup.cfg.sim)
    return f"simulator {checkup.sim_name} on {checkup.device}"


def check_frames(checkup: Checkup) -> str:
    """Compare changes in poses with velocities, all bodies flying and turning."""
    problem = frame_checks.find_wrong_motion(env_of(checkup))
    if problem is not None:
        raise StageError(problem, _FRAMES)
    return "all bodies fly and turn as their velocities say"


def check_gpus(checkup: Checkup) -> str:
    """Check the free memory on every GPU. Warp must find the run's GPU."""
    is_used = checkup.device.type != "cpu"
    said = []
    for index in range(torch.cuda.device_count()):
        try:
            name = torch.cuda.get_device_name(index)
            (free, total) = torch.cuda.mem_get_info(index)
        except Exception as error:  # even the start of CUDA may fail
            if is_used:
                raise
            said.append(f"cuda:{index} does not answer ({' '.join(str(error).split())})")
            continue
        checkup.gpus.append({"name": name, "free_gib": free / GIB, "total_gib": total / GIB})
        said.append(f"cuda:{index} {name}, {free / GIB:.1f} of {total / GIB:.1f} GiB free")
    if is_used:
        # This module silences Warp, whose own messages would stand among the JSON.
        from mqe.sim.mujoco_warp import wp

        wp.init()
        wp.device_from_torch(checkup.device)
    else:
        said.append("the run is on the CPU")
    return "; ".join(said)


def check_memory_plan(checkup: Checkup) -> str:
    """Plan the run's memory as configured."""
    env = checkup.cfg.env
    num_ranks = checkup.num_ranks
    rank_cfg = replace(checkup.cfg, env=replace(env, num_envs=max(1, env.num_envs // num_ranks)))
    checkup.plan = plan_memory(rank_cfg, checkup.sim_name, checkup.device, num_ranks, num_ranks)
    check_memory(checkup.plan)
    return describe(checkup.plan)


def check_one_world(checkup: Checkup) -> str:
    """Build and step one world."""
    return _step(checkup.build(1))


def check_many_worlds(checkup: Checkup) -> str:
    """Step many worlds."""
    return _step(checkup.build(NUM_WORLDS_CPU if checkup.device.type == "cpu" else NUM_WORLDS))


def check_graph(checkup: Checkup) -> str:
    """Step a captured CUDA graph. Any synchronization with the device is an error."""
    if checkup.is_launched_singly:
        return "not captured: kernels are launched one by one"
    env = env_of(checkup)
    actions = torch.zeros(env.num_envs, env.num_agents, env.spec.action_size, device=env.device)
    for _ in range(NUM_DECISIONS):
        env.step(actions)
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        env.step(actions)
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return "a decision is one CUDA graph without synchronization"


def check_training(checkup: Checkup) -> str:
    """Train for one iteration, resume from its checkpoint, and estimate the whole run's time."""
    checkup.close()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        cfg = training.small_run(checkup, folder)
        first = training.train(checkup, cfg)
        saved, _ = resume.find(str(folder))
        num_env_steps = (1 + NUM_ITERATIONS) * first.env_steps
        more, _ = resume.settings(saved, {"runner": {"num_env_steps": num_env_steps}})
        last = training.train(checkup, more, saved)
    steps_per_s = first.env_steps / (last.collect_s + last.update_s)
    run_s = checkup.cfg.runner.num_env_steps / steps_per_s
    return (
        f"{last.iteration} iterations with a checkpoint in between; {num_cores()} cores, about "
        f"{steps_per_s:,.0f} env steps/s with {cfg.env.num_envs} worlds: the "
        f"{checkup.cfg.runner.num_env_steps:,} env steps of this run take {format_duration(run_s)}"
    )


def check_collectors(checkup: Checkup) -> str:
    """Train with collectors as configured. Return their lines."""
    checkup.close()
    with tempfile.TemporaryDirectory() as name:
        cfg = training.with_collectors(checkup, Path(name) / "run")
        last = training.train(checkup, cfg, limit_s=checkup.together_s)
    return "; ".join(last.health)


def check_ranks(checkup: Checkup) -> str:
    """Train with several ranks."""
    checkup.close()
    with tempfile.TemporaryDirectory() as name:
        training.train_on_ranks(checkup, Path(name))
    return f"{checkup.num_ranks} ranks on {checkup.device.type} trained and saved equal weights"


def check_run_folder(checkup: Checkup) -> str:
    """Write to the folder for runs."""
    folder = Path(RESULTS)
    check_new_run_dir(folder / "doctor")
    above = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    with tempfile.TemporaryDirectory(dir=above, prefix=".doctor-") as name:
        (Path(name) / CONFIG).write_text(dump_yaml(to_dict(checkup.cfg)), encoding="utf-8")
    return f"{folder.absolute()} can be written, {shutil.disk_usage(above).free / GIB:.1f} GiB free"


def check_film(checkup: Checkup) -> str:
    """Film two frames. A machine without rendering can still train."""
    env = checkup.build(1)
    still = torch.zeros(env.num_envs, env.num_agents, env.spec.action_size, device=env.device)
    with tempfile.TemporaryDirectory() as name:
        try:
            path = Path(name) / "film.mp4"
            film = record(env, lambda _: still, path, seconds=0.08, size=(64, 36))  # type: ignore
        except ConfigError as error:
            raise StageSkippedError(
                f"this machine cannot make films, which training does not need: {error}"
            ) from None
    return f"{film.num_frames} frames rendered with {choose_backend()} and written"


_FRAMES = (
    "the simulator must use quaternions wxyz, angular velocities in the body frame, and linear "
    "velocities of the body's origin"
)
CRASH = (
    "update the GPU's driver; if the crash stays, report it with the output of mapush doctor "
    "--cuda-debug"
)
_TRAIN = (
    "try the CPU (--device cpu); check that the temporary folder (TMPDIR) can be written; on a "
    "GPU, mapush doctor --cuda-debug names a kernel that fails"
)
_BUILD = "try the CPU (--device cpu); on a GPU, mapush doctor --cuda-debug names the failing stage"

STAGES = (
    Stage("versions", check_versions, f"reinstall: {install('gpu')}"),
    Stage("device", check_device, "choose another --device or --sim"),
    Stage(
        "gpus",
        check_gpus,
        "check with nvidia-smi that driver and GPU work",
        needs_gpu=True,
        any_gpu_will_do=True,
    ),
    Stage("memory plan", check_memory_plan, "try a smaller --preset"),
    Stage("one world", check_one_world, _BUILD),
    Stage("frames", check_frames, _FRAMES),
    Stage("many worlds", check_many_worlds, _BUILD),
    Stage("graph", check_graph, REPORT, needs_gpu=True),
    Stage("training", check_training, _TRAIN),
    Stage(
        "collectors",
        check_collectors,
        "try fewer worlds or collectors: each collector needs a core",
        needs_collectors=True,
    ),
    Stage(
        "run folder",
        check_run_folder,
        "change to a folder that can be written, or name one with --out",
    ),
    Stage("film", check_film, "check that the temporary folder (TMPDIR) can be written"),
    Stage("ranks", check_ranks, "set NCCL_DEBUG=INFO to see the errors of NCCL", needs_ranks=True),
)


def driver_version() -> int | None:
    """Return the NVIDIA driver's newest CUDA version, 12040 for 12.4, or None."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        number = ctypes.c_int()
        if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
            return None
        return number.value
    return None


def warp_cuda() -> str | None:
    """Return the CUDA version in the installed Warp, such as 12.9, or None."""
    from mqe.sim.mujoco_warp import wp  # without Warp's messages, as in check_gpus

    built_with = wp.get_cuda_toolkit_version()
    return None if built_with is None else f"{built_with[0]}.{built_with[1]}"


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_needs(package: str) -> None:
    """Raise StageError if an installed package is older than ``package`` requires."""
    for line in requires(package) or ():
        needed = _NEEDS.match(line)
        if needed is None or ";" in line:  # no lower bound, or only for an extra or a platform
            continue
        name = needed["name"]
        bound = needed["bound"]
        has = _installed(name)
        if has is None or _release(has) < _release(bound):
            instead = "which is not installed" if has is None else f"not {has}"
            raise StageError(
                f"{package} needs {name} {bound} or newer, {instead}",
                f"pip install '{name}>={bound}'",
            )


def _release(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version without zeros at the end, (1, 19) for 1.19.0rc1."""
    numbers = re.findall(r"\d+(?:\.\d+)*", text)[0]
    return tuple(int(part) for part in re.sub(r"(\.0+)+$", "", numbers).split("."))


def _check_cuda(package: str, versions: dict[str, str | None]) -> None:
    """Raise StageError if ``package`` needs a newer major CUDA version than the driver supports."""
    built_for = versions[f"{package}_cuda"]
    supported = versions["driver_cuda"]
    if built_for is None or supported is None:
        return
    major = supported.split(".")[0]
    if int(built_for.split(".")[0]) > int(major):
        raise StageError(
            f"{package} is built for CUDA {built_for}, but the driver supports CUDA {supported} at "
            "most",
            f"update the NVIDIA driver, or install the {package} build for CUDA {major}",
        )


def _step(env: MultiAgentEnv) -> str:
    """Reset and take a few random decisions. Observations and rewards must stay finite."""
    obs, state = env.reset()
    finite("observations", obs)
    finite("critic states", state)
    draw = torch.Generator(env.device).manual_seed(0)
    shape = (env.num_envs, env.num_agents, env.spec.action_size)
    steps: list[TimeStep] = []
    for _ in range(NUM_DECISIONS):
        steps.append(env.step(2.0 * torch.rand(shape, generator=draw, device=env.device) - 1.0))
        finite("observations", steps[-1].obs)
        finite("rewards", steps[-1].reward)
    broken = sum(int((~step.valid).sum()) for step in steps)
    if broken:
        raise StageError(f"{broken} worlds broke within {NUM_DECISIONS} decisions", REPORT)
    return (
        f"{env.num_envs} x {NUM_DECISIONS} decisions of {env.decision_period} control steps "
        f"on {env.device}"
    )
