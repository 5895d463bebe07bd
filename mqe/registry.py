"""Simulators and tasks by name, and the one function to build an environment."""

from __future__ import annotations

import importlib.util
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch

from mqe.config import ConfigError, checked, install, option, to_dict
from mqe.env.environment import MultiAgentEnv
from mqe.extensions import Registry
from mqe.host_memory import check_room
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.sim.simulator import GRAVITY_FIELD, Simulator
from mqe.tasks.entry import EnvCfg, TaskEntry
from mqe.tasks.push import PUSH
from mqe.vec_env import ALL_WORLDS, Share
from mqe.world.randomization import Randomization, model_fields
from mqe.world.scene import sliding_forces
from mqe.world.streams import Streams

SIMULATORS: Registry[SimulatorEntry] = Registry("simulator")
_WORLD_BYTES = 16_384  # of a world, roughly


@dataclass(frozen=True)
class SimCfg:
    """Section ``sim``: the simulator and its device."""

    name: str = option(
        "auto",
        "simulator; auto: warp on a GPU if it is installed, else mujoco",
        choices=ChainMap({"auto": None}, SIMULATORS),  # pyright: ignore[reportArgumentType]
    )
    device: str = option("auto", "device: auto, cpu, cuda or cuda:K")
    num_threads: int = option(0, "threads of the CPU simulator; 0: one per core", min=0, max=1024)


class SimulatorEntry(NamedTuple):
    """One simulator by name, with all facts about it for the rest of the program."""

    # Builds N worlds of a model on a device.
    make: Callable[[mujoco.MjModel, int, SimCfg, torch.device], Simulator]
    # Raises ConfigError, with the way out, if it cannot run here with these settings.
    check: Callable[[SimCfg, torch.device], None] = lambda cfg, device: None
    runs_on_gpu: bool = True


TASKS: Registry[TaskEntry] = Registry("task")
TASKS.register("go1push_mid", PUSH)


def _make_warp(
    model: mujoco.MjModel, num_envs: int, cfg: SimCfg, device: torch.device
) -> Simulator:
    from mqe.sim.mujoco_warp import MujocoWarpSimulator  # needs the extra; nothing else here does

    try:
        return MujocoWarpSimulator(model, num_envs, device)
    except NotImplementedError as error:
        raise ConfigError(
            f"sim.name: warp does not simulate a thing of this task ({error}); say --sim mujoco "
            "--device cpu"
        ) from None


def _check_warp(cfg: SimCfg, device: torch.device) -> None:
    if not _has_warp():
        raise ConfigError(
            f"sim.name: warp is not installed; {install('gpu')}, or say --sim mujoco --device cpu"
        )


SIMULATORS.register(
    "mujoco",
    SimulatorEntry(
        lambda model, num_envs, cfg, device: MujocoBatchSimulator(model, num_envs, cfg.num_threads),
        runs_on_gpu=False,
    ),
)
SIMULATORS.register("warp", SimulatorEntry(_make_warp, _check_warp))


def resolve_sim(cfg: SimCfg) -> tuple[str, torch.device]:
    """Return the simulator's name and device for ``cfg`` on this machine.

    Raises ConfigError, with the wrong setting's name, for a simulator or device that it lacks.
    """
    has_gpu = torch.cuda.is_available() and (
        _has_warp() if cfg.name in ("auto", "warp") else SIMULATORS[cfg.name].runs_on_gpu
    )
    device = resolve_device(cfg.device, "sim.device", has_gpu)
    name = cfg.name if cfg.name != "auto" else ("mujoco" if device.type == "cpu" else "warp")
    SIMULATORS.find(name, "sim.name").check(cfg, device)
    if name == "mujoco" and device.type != "cpu":
        raise ConfigError(
            f"sim.device: the mujoco simulator runs on cpu, not {device}; say --device cpu or "
            "--sim warp"
        )
    return name, device


def slow_choice(cfg: SimCfg) -> str | None:
    """Return advice if a GPU stays idle without the extra, or a CPU does a GPU's work. None
    otherwise.
    """
    if cfg.name == "warp" and resolve_sim(cfg)[1].type == "cpu":
        return "MuJoCo Warp on a CPU is for tests, and ten times as slow as MuJoCo; say --sim auto"
    if _has_warp() or (cfg.name, cfg.device) != ("auto", "auto") or not torch.cuda.is_available():
        return None
    return (
        f"the GPU stays idle without MuJoCo Warp; {install('gpu')} installs MuJoCo Warp, "
        "--device cpu uses the CPU on purpose"
    )


def _has_warp() -> bool:
    return importlib.util.find_spec("mujoco_warp") is not None


def resolve_device(name: str, where: str, has_gpu: bool) -> torch.device:
    """Return a device of this machine, for ``auto`` a GPU with ``has_gpu``, else the CPU.

    Raises ConfigError, with the setting ``where``, for a missing one.
    """
    if name == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if has_gpu else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"{where}: unknown device '{name}'; allowed: auto, cpu, cuda, cuda:K")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        index = device.index or 0
        if index >= count:
            raise ConfigError(
                f"{where}: no {name} here ({count} GPU(s) visible); set it to cpu or auto"
            )
        return torch.device("cuda", index)
    return torch.device("cpu")


def make_simulator(cfg: SimCfg, model: mujoco.MjModel, num_envs: int) -> Simulator:
    """Build ``num_envs`` worlds with ``model`` on the simulator and device for ``cfg`` on this
    machine.
    """
    name, device = resolve_sim(cfg)
    return SIMULATORS[name].make(model, num_envs, cfg, device)


def make_env(
    env: EnvCfg,
    sim: SimCfg,
    task: Any,
    seed: int,
    share: Share = ALL_WORLDS,
    places: Sequence[tuple[int, int]] | None = None,
    first_episode: int = 0,
) -> MultiAgentEnv:
    """Build the environment for task settings ``task``. One seed gives one sequence of episodes.

    If several processes divide the worlds, ``env.num_envs`` is the number in this ``share``.
    ``places`` holds each world's seed and number, by default ``seed`` and 0, 1, ...
    ``first_episode`` is the number of every world's first episode. Raises ConfigError for
    impossible settings.
    """
    env = checked(env, "env")
    sim = checked(sim, "sim")
    task = checked(task, "task")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed: must be a whole number from 0 to {2**63 - 1}, not {seed!r}")
    _, device = resolve_sim(sim)
    check_room(env.num_envs * _WORLD_BYTES, device, "env.num_envs", env.num_envs)
    streams = Streams(seed, env.num_envs, device, share.first, places)
    entry = TASKS[task.name]
    setup = entry.make(task, env, device, streams)
    simulator = make_simulator(sim, setup.scene.model, env.num_envs)
    varied = model_fields(env.randomize, setup.scene, setup.fields, streams, env.num_envs)
    for field, values in varied.items():
        simulator.set_field(field, values)
    gravity = varied.get(GRAVITY_FIELD)
    if gravity is not None:
        against_gravity = torch.nn.functional.normalize(-gravity).to(device, torch.float32)
        setup = setup._replace(scene=replace(setup.scene, against_gravity=against_gravity))
    actions = (env.num_envs, setup.task.spec.num_agents, setup.task.spec.action_size)
    forces = sliding_forces(setup.scene, setup.fields | varied)
    weigh = setup.task.features.weigh
    if weigh is not None and forces is not None:
        weigh(forces.to(device, torch.float32))
    randomization = Randomization(
        env.randomize, setup.scene, actions, setup.task.max_episode_length, streams, forces
    )
    return MultiAgentEnv(
        simulator,
        setup.scene,
        setup.task,
        randomization,
        entry.report,
        share,
        first_episode,
        settings={"env": to_dict(env), "task": to_dict(task)},
    )
