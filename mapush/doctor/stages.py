"""The doctor's stages, from versions to a training. Each uses the results of earlier ones."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import torch

from harl_mapush.config import RunCfg
from harl_mapush.interruption import TIME_IS_UP
from harl_mapush.memory_plan import GIB, check_memory, describe, plan_memory
from mqe.config import ConfigError, dump_yaml, install, to_dict
from mqe.registry import make_env, resolve_sim
from mqe.viewer.offscreen import choose_backend
from mqe.world.randomization import RandomizationCfg

TOGETHER_S = 30.0  # default duration of a training with collectors
NUM_WORLDS = {"cpu": 64, "cuda": 1000}
NUM_DECISIONS = 4
_PATIENCE_S = 600.0  # for the start of a training in other processes
_PACKAGES = ("torch", "mujoco", "mujoco-warp", "warp-lang", "numpy")


@dataclass
class Checkup:
    """The settings of a self-check."""

    cfg: RunCfg
    num_ranks: int = 1  # they share the run's worlds
    num_collectors: int = 0
    together_s: float = TOGETHER_S  # duration of the training with collectors


class Stage(NamedTuple):
    """One step of the check."""

    run: Callable[[Checkup], str]  # returns its line of findings, or raises
    hint: str  # advice for failures without a hint of their own


class StageError(Exception):
    """A stage has failed: the problem, and a hint for the user."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


def stages(checkup: Checkup) -> dict[str, Stage]:
    """Return the stages of a check by name, in order."""
    planned = {
        "versions": Stage(check_versions, f"reinstall: {install('gpu')}"),
        "device": Stage(check_device, "choose another --device or --sim, or a smaller --preset"),
        "worlds": Stage(
            check_worlds,
            "try the CPU (--device cpu); on a GPU, CUDA_LAUNCH_BLOCKING=1 mapush doctor names a "
            "failing kernel",
        ),
        "pictures": Stage(check_pictures, ""),
    }
    if checkup.num_collectors:
        planned["collectors"] = Stage(
            check_collectors, "try fewer worlds or collectors: each collector needs a core"
        )
    if checkup.num_ranks > 1:
        planned["ranks"] = Stage(check_ranks, "set NCCL_DEBUG=INFO to see the errors of NCCL")
    return planned


def check_versions(checkup: Checkup) -> str:
    """Check the versions: Python, CUDA and packages must fit together."""
    versions: dict[str, str | None] = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        **{package: _installed(package) for package in _PACKAGES},
        "torch_cuda": torch.version.cuda,
    }
    ours = mujoco.__version__
    warps = versions["mujoco-warp"]
    if warps is not None and warps.split(".")[:2] != ours.split(".")[:2]:
        raise StageError(
            f"mujoco-warp {warps} is not for MuJoCo {ours}", f"pip install mujoco-warp=={ours}"
        )

    line = ", ".join(f"{name} {value}" for name, value in versions.items() if value is not None)
    driver = driver_version()
    if driver is None:
        return line
    versions["driver_cuda"] = f"{driver // 1000}.{driver % 1000 // 10}"
    versions["warp_cuda"] = None if warps is None else warp_cuda()
    if checkup.cfg.sim.device != "cpu":
        _check_cuda("torch", versions)
        _check_cuda("warp", versions)
    if versions["torch_cuda"] is None:
        line += "; this torch is built for CPUs only: to use the GPU, install torch's CUDA build"
    elif warps is None:
        line += f"; to use the GPU, {install('gpu')}"
    return f"{line}, driver for CUDA {versions['driver_cuda']}"


def check_device(checkup: Checkup) -> str:
    """Resolve simulator and device, list the GPUs, and plan the run's memory as configured."""
    sim_name, device = resolve_sim(checkup.cfg.sim)
    gpus = []
    for index in range(torch.cuda.device_count() if device.type == "cuda" else 0):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        gpus.append(f"cuda:{index} {name}, {free / GIB:.1f} of {total / GIB:.1f} GiB free")
    env = checkup.cfg.env
    ranks = checkup.num_ranks
    rank_cfg = replace(checkup.cfg, env=replace(env, num_envs=max(1, env.num_envs // ranks)))
    plan = plan_memory(rank_cfg, sim_name, device, ranks, ranks)
    check_memory(plan)
    return "; ".join([f"simulator {sim_name} on {device}", *gpus, describe(plan)])


def check_worlds(checkup: Checkup) -> str:
    """Step the run's worlds. Observations and rewards must stay finite."""
    cfg = checkup.cfg
    num_envs = NUM_WORLDS[resolve_sim(cfg.sim)[1].type]
    env_cfg = replace(cfg.env, num_envs=num_envs, randomize=RandomizationCfg())
    env = make_env(env_cfg, cfg.sim, cfg.task, cfg.runner.seed)
    if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        env.use_graphs = False
    try:
        draw = torch.Generator(env.device).manual_seed(0)
        shape = (env.num_envs, env.num_agents, env.spec.action_size)
        obs, _ = env.reset()
        num_bad = int((~torch.isfinite(obs)).sum())
        for _ in range(NUM_DECISIONS):
            step = env.step(2.0 * torch.rand(shape, generator=draw, device=env.device) - 1.0)
            num_bad += int((~torch.isfinite(step.obs)).sum() + (~torch.isfinite(step.reward)).sum())
            num_bad += int((~step.valid).sum())
    finally:
        env.close()
    if num_bad:
        raise StageError(
            f"{num_bad} numbers are not finite, or of broken worlds",
            "this is a bug: please report it with the output of mapush doctor",
        )
    return f"{num_envs} x {NUM_DECISIONS} decisions on {env.device}"


def check_pictures(checkup: Checkup) -> str:
    """Find an OpenGL backend. A machine without one can still train."""
    try:
        return f"films are drawn by {choose_backend()}"
    except ConfigError as error:
        return f"no films, which training does not need: {error}"


def check_collectors(checkup: Checkup) -> str:
    """Train with collectors as configured. Return the last line of each process."""
    seconds = checkup.together_s
    lines = _train(
        checkup,
        [],
        collectors=checkup.num_collectors,
        max_wall_time=f"{seconds:g}s",
        num_env_steps=10**12,
    )
    last = {line.partition("]")[0]: line for line in lines if line.startswith("[")}
    return "; ".join(last.values()) or f"trained for {seconds:g} s"


def check_ranks(checkup: Checkup) -> str:
    """Train for one iteration with several ranks."""
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", str(checkup.num_ranks)]
    _train(checkup, torchrun, num_env_steps=1, collectors=0)
    return f"{checkup.num_ranks} ranks trained and saved a checkpoint"


def _train(checkup: Checkup, launcher: Sequence[str], **runner: Any) -> list[str]:
    """Train in another process with changed settings of the runner. Return the printed lines.

    Raise StageError with the first line of a failed training.
    """
    cfg = checkup.cfg
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "run.yaml"
        changed = replace(
            cfg,
            runner=replace(cfg.runner, **runner),
            logger=replace(cfg.logger, lines="async"),
        )
        file.write_text(dump_yaml(to_dict(changed)), encoding="utf-8")
        words = ["-m", "harl_mapush.train", "--config", str(file), "--out", f"{name}/run"]
        done = subprocess.run(
            [sys.executable, *launcher, *words],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S + checkup.together_s,
            check=False,
        )
    if done.returncode not in (0, TIME_IS_UP):
        lines = [line for line in done.stderr.splitlines() if line.startswith(("rank ", "python"))]
        problem = lines[0] if lines else f"the training ended with exit code {done.returncode}"
        raise StageError(problem, "see the last line of the message")
    return done.stdout.strip().splitlines()


def driver_version() -> int | None:
    """Return the NVIDIA driver's newest CUDA version, 12040 for 12.4, or None."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        number = ctypes.c_int()
        return number.value if library.cuDriverGetVersion(ctypes.byref(number)) == 0 else None
    return None


def warp_cuda() -> str | None:
    """Return the CUDA version in the installed Warp, such as 12.9, or None."""
    from mqe.sim.mujoco_warp import wp  # Warp without its messages

    built_with = wp.get_cuda_toolkit_version()
    return None if built_with is None else f"{built_with[0]}.{built_with[1]}"


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


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
