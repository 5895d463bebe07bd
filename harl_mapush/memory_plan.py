"""A run's memory on its device, computed before the first allocation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import mujoco
import torch

from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.collectors.launchers import LAUNCHERS
from harl_mapush.config import RunCfg
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.learning.network_memory import gru_floats, passed_floats
from harl_mapush.machine import Machine
from mqe.config import ConfigError
from mqe.host_memory import host_memory
from mqe.registry import SIMULATORS, TASKS, EnvCfg, SimCfg, TaskSetup
from mqe.world.broken_worlds import bytes_of_last_states
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
    """Memory of a run's parts and on its device [bytes]. Device memory is None if unknown."""

    device: str
    num_envs: int
    num_steps: int  # 0 without a learner
    fixed: int  # context, kernel code, networks: independent of ``num_envs`` and ``num_steps``
    simulator: int
    environment: int
    rollout: int
    update: int
    free: int | None  # available to this process, its own context included
    total: int | None
    num_ranks: int = 1  # processes with equal needs
    num_workers: int = 1  # calculator processes with equal needs and one ``free``
    # A setting and its value, if ``rollout`` and ``update`` depend on it instead of on ``num_envs``
    # and ``num_steps``.
    buffer: tuple[str, int] | None = None

    @property
    def needed(self) -> int:
        """Sum of all parts."""
        return self.fixed + self.simulator + self.environment + self.rollout + self.update

    @property
    def in_worlds(self) -> int:
        """Memory proportional to the number of worlds [bytes]."""
        if self.buffer is not None:
            return self.simulator + self.environment
        return self.needed - self.fixed


def plan_memory(
    cfg: RunCfg, sim_name: str, device: torch.device, num_ranks: int = 1, num_local: int = 1
) -> MemoryPlan:
    """Compute the memory for training by ``cfg`` on this simulator and device.

    There are ``num_ranks`` processes, ``num_local`` of them on this machine. ``cfg`` has one
    process's share of the worlds. Raises ConfigError for conflicting settings of algorithm, network
    and runner.
    """
    with torch.random.fork_rng(devices=[]):
        setup = _one_world_setup(cfg.env, cfg.task)
        spec = setup.task.spec
        try:
            ranks = Ranks(size=num_ranks)
            team = make_algorithm(cfg.algorithm, cfg.network, spec, torch.device("cpu"), 0, ranks)
            learner = team.plan_bytes(cfg.runner.num_steps, cfg.env.num_envs, device.type)
        except ValueError as error:
            raise ConfigError(
                f"algorithm, network and runner do not go together: {error}"
            ) from None
    num_weights = sum(flat.numel() for flat in team.weights.values())

    worlds = _plan_worlds(cfg.env.num_envs, setup, sim_name, cfg.sim, device)
    recorded = bytes_of_last_states(setup.scene) if cfg.logger.broken_worlds else 0

    evaluation = 0
    if cfg.runner.evaluation_interval is not None:
        share = min(cfg.runner.evaluation_envs, cfg.runner.evaluation_episodes) / worlds.num_envs
        evaluation = round(share * (worlds.simulator + worlds.environment))

    processes = (1 + cfg.runner.collectors) * worlds.fixed
    messages = _MESSAGES if num_ranks > 1 and device.type != "cpu" else 0

    # Ranks on one machine share its memory, but each has a GPU of its own.
    free = worlds.free
    if free is not None and device.type == "cpu":
        free = free // num_local

    return worlds._replace(
        num_steps=cfg.runner.num_steps,
        environment=worlds.environment + cfg.env.num_envs * recorded,
        fixed=processes + round(num_weights * _WEIGHT) + evaluation + messages,
        rollout=round(learner.experience * _SLACK),
        update=round(learner.update * _SLACK),
        free=free,
        num_ranks=num_ranks,
        buffer=("algorithm.buffer_size", cfg.algorithm.buffer_size)
        if learner.is_constant
        else None,
    )


def check_run_memory(
    cfg: RunCfg, machine: Machine, num_ranks: int, num_local: int, say: Callable[[str], None]
) -> None:
    """Report a run's planned memory by ``say``. Raise ConfigError if it does not fit."""
    plan = plan_memory(cfg, machine.simulator, machine.device, num_ranks, num_local)
    if cfg.runner.collectors and LAUNCHERS[cfg.runner.engine].is_elsewhere():
        _, plan = plan_learner(plan, machine.learner)
    elif machine.learner != machine.device:
        plan, alone = plan_learner(plan, machine.learner)
        say(describe(alone))
    say(describe(plan))
    check_memory(plan)


def plan_learner(plan: MemoryPlan, device: torch.device) -> tuple[MemoryPlan, MemoryPlan]:
    """Split a run's plan in two if worlds and learner have separate devices.

    The first plan is for the worlds, the second for the learner. Raises ConfigError if replay
    buffer and update do not fit on the learner's device.
    """
    free, total = device_memory(device)
    fixed = _CONTEXT + _CODE if device.type != "cpu" else _PROCESS
    alone = plan._replace(
        device=str(device), fixed=fixed, simulator=0, environment=0, free=free, total=total
    )
    if free is not None and alone.needed > free:
        assert plan.buffer is not None  # algorithms with collectors have one
        name, size = plan.buffer
        raise ConfigError(
            f"{name}={size} takes {alone.needed / GIB:.1f} GiB with an update, but {device} has "
            f"{free / GIB:.1f} GiB free; lower {name}, or set another runner.learner_device"
        )
    return plan._replace(rollout=0, update=0), alone


def plan_playing(cfg: RunCfg, sim_name: str, device: torch.device) -> MemoryPlan:
    """Compute the memory for the worlds in ``cfg`` and a team's decisions, without a learner."""
    with torch.random.fork_rng(devices=[]):
        setup = _one_world_setup(cfg.env, cfg.task)
    worlds = _plan_worlds(cfg.env.num_envs, setup, sim_name, cfg.sim, device)
    sizes = cfg.network.hidden_sizes
    decision = passed_floats(cfg.network, sizes, worlds.num_envs, worlds.num_envs) * _FLOAT * _SLACK
    # The hidden states before and after the decision.
    hidden = (
        2 * gru_floats(cfg.network, sizes) * worlds.num_envs * setup.task.spec.num_agents * _FLOAT
    )
    return worlds._replace(environment=worlds.environment + round(decision + hidden))


def share_among(plan: MemoryPlan, num_workers: int) -> MemoryPlan:
    """Return ``plan`` for ``num_workers`` equal processes beside this one on the device."""
    if plan.free is not None and plan.device != "cpu":
        # This process keeps its own context.
        plan = plan._replace(free=plan.free - _CONTEXT)
    return plan._replace(num_workers=num_workers)


def most_worlds(plan: MemoryPlan) -> int | None:
    """Return the largest number of worlds, over all ranks, for the other settings.

    The number is rounded down to two significant binary digits. None: the free memory is unknown.
    """
    if plan.free is None:
        return None
    room = plan.free / plan.num_workers * _ROOM - (plan.needed - plan.in_worlds)
    return _rounded(plan.num_envs * room / plan.in_worlds) * plan.num_ranks


def check_memory(plan: MemoryPlan) -> None:
    """Raise ConfigError, with fitting values, if a run does not fit on its device.

    Nothing is raised if the free memory is unknown.
    """
    workers = plan.num_workers
    if plan.free is None or plan.needed * workers <= plan.free:
        return
    # Share of rollout and update in the memory left by the other parts.
    in_rows = plan.rollout + plan.update
    room = plan.free / workers * _ROOM - (plan.needed - in_rows)
    share = room / in_rows if in_rows else 0.0
    num_envs = most_worlds(plan) or 0
    num_steps = 0 if plan.buffer is not None else int(plan.num_steps * share)
    num_fitting = int(plan.free * _ROOM / plan.needed)

    ways = []
    if num_envs >= 1:
        ways.append(f"env.num_envs to {num_envs}")
    if plan.buffer is not None:
        name, size = plan.buffer
        if _rounded(size * share) >= 1:
            ways.append(f"{name} to {_rounded(size * share)}")
    if num_steps >= 1:
        ways.append(f"runner.num_steps to {num_steps}")
    if workers > 1 and num_fitting >= 1:
        ways.append(f"--workers to {num_fitting}")
    if ways:
        hint = f"lower {' or '.join(ways)}"
    else:
        hint = "end other programs that use it, or use another device"

    owner = "" if plan.num_ranks == 1 else f" on each of {plan.num_ranks} ranks"
    owner += "" if workers == 1 else f" in each of {workers} workers"
    steps = f" with runner.num_steps={plan.num_steps}" if plan.num_steps else ""
    raise ConfigError(
        f"env.num_envs={plan.num_envs * plan.num_ranks}{steps} takes {plan.needed / GIB:.1f} "
        f"GiB{owner}, but {plan.device} has {plan.free / GIB:.1f} GiB free; {hint}"
    )


def describe(plan: MemoryPlan) -> str:
    """Format a plan as one line."""
    parts = ("simulator", "environment", "rollout", "update", "fixed")
    sizes = {name: f"{getattr(plan, name) / GIB:.2f}" for name in parts}
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


def _one_world_setup(env: EnvCfg, task: Any) -> TaskSetup:
    """Build a single world's task on the host, the source for all sizes."""
    host = torch.device("cpu")
    streams = Streams(0, 1, host)
    setup = TASKS[task.name].make(task, replace(env, num_envs=1), host, streams)
    fields = model_fields(env.randomize, setup.scene, setup.fields, streams, 1)
    return setup._replace(fields=fields)


def _plan_worlds(
    num_envs: int, setup: TaskSetup, sim_name: str, sim: SimCfg, device: torch.device
) -> MemoryPlan:
    """Compute the memory for the worlds alone."""
    fixed, per_world = _simulator(setup, sim_name, sim, device)
    free, total = device_memory(device)
    return MemoryPlan(
        device=str(device),
        num_envs=num_envs,
        num_steps=0,
        fixed=round(fixed),
        simulator=round(num_envs * per_world),
        environment=num_envs * (_WORLD + _ROBOT * setup.scene.num_robots),
        rollout=0,
        update=0,
        free=free,
        total=total,
    )


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
