"""The doctor's stages, from versions to pictures. Each uses the results of earlier ones."""

import ctypes
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import mujoco
import torch

from harl_mapush.config import RunCfg
from harl_mapush.runs import exported as exported  # reads policies of former releases
from mqe.config import ConfigError, install
from mqe.manifest import packages
from mqe.registry import make_env, resolve_sim
from mqe.viewer.offscreen import choose_backend
from mqe.world.randomization import RandomizationCfg

NUM_WORLDS = {"cpu": 64, "cuda": 1000}
NUM_DECISIONS = 4
_GIB = 2**30


class Stage(NamedTuple):
    """One step of the check."""

    run: Callable[[RunCfg], str]  # returns its line of findings, or raises
    hint: str  # advice for failures without a hint of their own


class StageError(Exception):
    """A stage has failed: the problem, and a hint for the user."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


def stages() -> dict[str, Stage]:
    """Return the stages by name, in order."""
    return {
        "versions": Stage(check_versions, f"reinstall: {install('gpu')}"),
        "device": Stage(check_device, "choose another --device or --sim, or a smaller --preset"),
        "worlds": Stage(
            check_worlds,
            "try the CPU (--device cpu); on a GPU, CUDA_LAUNCH_BLOCKING=1 mapush doctor names a "
            "failing kernel",
        ),
        "pictures": Stage(check_pictures, ""),
    }


def check_versions(cfg: RunCfg) -> str:
    """Check the versions: Python, CUDA and packages must fit together."""
    versions = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        **packages(),
        "torch_cuda": torch.version.cuda,
    }
    ours = mujoco.__version__
    warps = versions.get("mujoco-warp")
    if warps is not None and warps.split(".")[:2] != ours.split(".")[:2]:
        raise StageError(
            f"mujoco-warp {warps} is not for MuJoCo {ours}", f"pip install mujoco-warp=={ours}"
        )

    line = ", ".join(f"{name} {value}" for name, value in versions.items() if value is not None)
    driver = driver_version()
    if driver is None:
        return line
    supported = f"{driver // 1000}.{driver % 1000 // 10}"
    built_for = torch.version.cuda
    if cfg.sim.device != "cpu" and built_for and int(built_for.split(".")[0]) > driver // 1000:
        raise StageError(
            f"torch is built for CUDA {built_for}, but the driver supports CUDA {supported} at "
            "most",
            f"update the NVIDIA driver, or install the torch build for CUDA {driver // 1000}",
        )
    if built_for is None:
        line += "; this torch is built for CPUs only: to use the GPU, install torch's CUDA build"
    elif warps is None:
        line += f"; to use the GPU, {install('gpu')}"
    return f"{line}, driver for CUDA {supported}"


def check_device(cfg: RunCfg) -> str:
    """Resolve simulator and device, and list the GPUs with their memory."""
    sim_name, device = resolve_sim(cfg.sim)
    gpus = []
    for index in range(torch.cuda.device_count() if device.type == "cuda" else 0):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        gpus.append(f"cuda:{index} {name}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free")
    return "; ".join([f"simulator {sim_name} on {device}", *gpus])


def check_worlds(cfg: RunCfg) -> str:
    """Step the run's worlds. Observations and rewards must stay finite."""
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


def check_pictures(cfg: RunCfg) -> str:
    """Find an OpenGL backend. A machine without one can still train."""
    try:
        return f"films are drawn by {choose_backend()}"
    except ConfigError as error:
        return f"no films, which training does not need: {error}"


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
