"""A run's memory on its device, computed before the first allocation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import mujoco
import torch

from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.config import RunCfg
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.machine import Machine
from mqe.config import ConfigError
from mqe.host_memory import host_memory
from mqe.registry import SIMULATORS, TASKS, SimCfg, TaskSetup
from mqe.world.randomization import model_fields
from mqe.world.streams import Streams

GIB = 2**30
_MIB = 2**20
_FLOAT = 4  # bytes
_WEIGHT = 4 * _FLOAT  # bytes: a weight, its gradient and the two moments of Adam
# Bytes per world, and per robot: the state of task and environment, and two copies of a decision's
# tensors.
_WORLD = 2048
_ROBOT = 2560
_SLACK = 1.05  # factor for rounded and kept blocks of torch
_MESSAGES = 512 * _MIB  # buffers of NCCL, between ranks on GPUs
_ROOM = 0.98  # share of the free memory in a suggestion
# Memory on a GPU besides tensors: the driver's context (created by the query for free memory), the
# code of torch's and Warp's kernels, and the kernels' stacks on every multiprocessor.
_CONTEXT = 480 * _MIB
_CODE = 320 * _MIB
_STACKS = 3 * _MIB
# Memory on a CPU besides tensors: interpreter, libraries, threads (two cores), and the additional
# libraries of a torch built for CUDA.
_PROCESS = 290 * _MIB + (0 if torch.version.cuda is None else 280 * _MIB)


class MemoryPlan(NamedTuple):
    """A run's memory on a device [bytes]. The device's own memory is None if unknown."""

    device: str
    num_envs: int
    fixed: int  # context, kernel code, networks
    worlds: int  # simulator, task and environment
    learner: int  # experience and one update
    free: int | None  # available to this process, its own context included
    total: int | None
    # The setting of the learner's size; None: ``env.num_envs`` sets it
    setting: str | None = None
    num_ranks: int = 1  # processes with equal needs

    @property
    def needed(self) -> int:
        """Sum of all parts."""
        return self.fixed + self.worlds + self.learner

    @property
    def in_worlds(self) -> int:
        """Memory proportional to the number of worlds [bytes]."""
        return self.worlds + (self.learner if self.setting is None else 0)


def plan_memory(
    cfg: RunCfg, sim_name: str, device: torch.device, num_ranks: int = 1, num_local: int = 1
) -> MemoryPlan:
    """Compute the memory for training by ``cfg`` on this simulator and device.

    There are ``num_ranks`` processes, ``num_local`` of them on this machine. ``cfg`` has one
    process's share of the worlds. Raises ConfigError for conflicting settings of algorithm, network
    and runner.
    """
    setup = _one_world_setup(cfg)
    playing = _plan_worlds(setup, cfg, sim_name, device)
    with torch.random.fork_rng(devices=[]):
        try:
            ranks = Ranks(size=num_ranks)
            host = torch.device("cpu")
            team = make_algorithm(cfg.algorithm, cfg.network, setup.task.spec, host, 0, ranks)
            learner = team.plan_bytes(cfg.runner.num_steps, cfg.env.num_envs, device.type)
        except ValueError as error:
            raise ConfigError(
                f"algorithm, network and runner do not go together: {error}"
            ) from None
    num_weights = sum(flat.numel() for flat in team.weights.values())
    fixed = (1 + cfg.runner.collectors) * playing.fixed + num_weights * _WEIGHT
    if num_ranks > 1 and device.type != "cpu":
        fixed += _MESSAGES

    # Ranks on one machine share its memory, but each has a GPU of its own.
    free = playing.free
    if free is not None and device.type == "cpu":
        free = free // num_local
    return playing._replace(
        fixed=fixed,
        learner=round((learner.experience + learner.update) * _SLACK),
        setting="algorithm.buffer_size" if learner.is_constant else None,
        free=free,
        num_ranks=num_ranks,
    )


def plan_playing(cfg: RunCfg, sim_name: str, device: torch.device) -> MemoryPlan:
    """Compute the memory for the worlds in ``cfg``, without a learner."""
    return _plan_worlds(_one_world_setup(cfg), cfg, sim_name, device)


def _plan_worlds(setup: TaskSetup, cfg: RunCfg, sim_name: str, device: torch.device) -> MemoryPlan:
    fixed, per_world = _simulator(setup, sim_name, cfg.sim, device)
    per_world += _WORLD + _ROBOT * setup.scene.num_robots
    num_envs = cfg.env.num_envs
    free, total = device_memory(device)
    return MemoryPlan(
        str(device), num_envs, round(fixed), round(num_envs * per_world), 0, free, total
    )


def check_run_memory(
    cfg: RunCfg, machine: Machine, num_ranks: int, num_local: int, say: Callable[[str], None]
) -> None:
    """Report a run's planned memory by ``say``. Raise ConfigError if it does not fit."""
    plan = plan_memory(cfg, machine.simulator, machine.device, num_ranks, num_local)
    plans = [plan]
    if machine.learner != machine.device:
        free, total = device_memory(machine.learner)
        fixed = _PROCESS if machine.learner.type == "cpu" else _CONTEXT + _CODE
        alone = plan._replace(
            device=str(machine.learner), fixed=fixed, worlds=0, free=free, total=total
        )
        plans = [alone, plan._replace(learner=0, setting=None)]
    for plan in plans:
        say(describe(plan))
        check_memory(plan)


def check_memory(plan: MemoryPlan) -> None:
    """Raise ConfigError, with a fitting number of worlds, if a run does not fit on its device.

    Nothing is raised if the free memory is unknown.
    """
    if plan.free is None or plan.needed <= plan.free:
        return
    ways = []
    room = plan.free * _ROOM - (plan.needed - plan.in_worlds)
    num_envs = _rounded(plan.num_envs * room / max(plan.in_worlds, 1)) * plan.num_ranks
    if plan.worlds and num_envs:
        ways.append(f"env.num_envs to {num_envs}")
    if plan.setting is not None:
        ways.append(plan.setting)
    hint = "end other programs that use it, or use another device"
    if ways:
        hint = f"lower {' or '.join(ways)}"
    owner = "" if plan.num_ranks == 1 else f" on each of {plan.num_ranks} ranks"
    raise ConfigError(
        f"env.num_envs={plan.num_envs * plan.num_ranks} takes {plan.needed / GIB:.1f} GiB{owner}, "
        f"but {plan.device} has {plan.free / GIB:.1f} GiB free for it; {hint}"
    )


def describe(plan: MemoryPlan) -> str:
    """Format a plan as one line."""
    sizes = {name: f"{getattr(plan, name) / GIB:.2f}" for name in ("worlds", "learner", "fixed")}
    named = ", ".join(f"{name} {size}" for name, size in sizes.items() if size != "0.00")
    room = ""
    if plan.free is not None and plan.total is not None:
        room = f"; {plan.free / GIB:.1f} of {plan.total / GIB:.1f} free"
    ranks = "" if plan.num_ranks == 1 else f", each of {plan.num_ranks} ranks"
    return f"Memory on {plan.device}{ranks}: {plan.needed / GIB:.2f} GiB planned ({named}){room}."


def device_memory(device: torch.device) -> tuple[int | None, int | None]:
    """Return the device's memory available to this process, and its total memory [bytes].

    The first value includes this process's context. Both are None if unknown.
    """
    if device.type != "cpu":
        free, total = torch.cuda.mem_get_info(device)
        return free + _CONTEXT, total
    return host_memory()


def _one_world_setup(cfg: RunCfg) -> TaskSetup:
    """Build a single world's task on the host, the source for all sizes.

    Torch's random generator stays as it is.
    """
    host = torch.device("cpu")
    streams = Streams(0, 1, host)
    with torch.random.fork_rng(devices=[]):
        setup = TASKS[cfg.task.name].make(cfg.task, replace(cfg.env, num_envs=1), host, streams)
        fields = model_fields(cfg.env.randomize, setup.scene, setup.fields, streams, 1)
    return setup._replace(fields=fields)


def _simulator(
    setup: TaskSetup, sim_name: str, sim: SimCfg, device: torch.device
) -> tuple[float, float]:
    """Return the memory [bytes] of a process with this simulator without worlds, and per world."""
    model = setup.scene.model
    fields = sum(values.numel() for values in setup.fields.values())
    plan = SIMULATORS[sim_name].plan_memory
    if plan is None:
        state = mujoco.mj_stateSize(model, int(mujoco.mjtState.mjSTATE_INTEGRATION))
        fixed = _PROCESS if device.type == "cpu" else _CONTEXT + _CODE
        return fixed, 8.0 * (state + model.nsensordata + fields)
    own_bytes, per_world = plan(model, sim)
    per_world += fields * _FLOAT
    if device.type == "cpu":
        return _PROCESS + own_bytes, per_world
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return _CONTEXT + _CODE + _STACKS * processors + own_bytes, per_world


def _rounded(count: float) -> int:
    """Round down to two significant binary digits, since an estimate justifies no more."""
    whole = max(int(count), 0)
    step = 1 << max(0, whole.bit_length() - 2)
    return whole // step * step
