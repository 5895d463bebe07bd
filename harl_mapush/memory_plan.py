"""What a run will take of its device's memory, worked out before the first allocation."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NamedTuple

import mujoco
import torch
from torch import Tensor

from harl_mapush.algorithms import ALGORITHMS, OnPolicy, TeamSpec
from harl_mapush.algorithms.minibatches import CPU_TILE_ROWS
from harl_mapush.config import RunCfg
from harl_mapush.storage import Storage
from mqe.broken_worlds import bytes_of_last_states, num_rows
from mqe.config import ConfigError
from mqe.nature import model_fields
from mqe.registry import TASKS, World
from mqe.streams import Streams

GIB = 2**30
_MIB = 2**20
_FLOAT = 4  # bytes
_WEIGHT = 4 * _FLOAT  # bytes: a weight, its gradient and the two moments of Adam
_ENV = (2048, 2560)  # bytes a world, and a robot: state of task and environment, and one decision's tensors, held twice
_SLACK = 1.05  # torch rounds blocks up and keeps some that it freed
_ROOM = 0.98  # share of the free memory that a suggestion uses
# What no tensor accounts for. On a GPU: the driver's context, which is there as soon as one asks for the free memory,
# then the code of torch's and Warp's kernels, and the kernels' stacks on every multiprocessor.
_CONTEXT, _CODE, _STACKS = 480 * _MIB, 320 * _MIB, 3 * _MIB
# On a CPU: interpreter, libraries, threads (two cores), and torch's larger libraries where it is built for CUDA.
_PROCESS = 290 * _MIB + (0 if torch.version.cuda is None else 280 * _MIB)
# Floats a unit of a GRU layer holds for every row: what its backward pass needs, and what it computes without one.
_GRU_KEPT, _GRU_PASSING = 9, 11


class MemoryPlan(NamedTuple):
    """Bytes that a run takes, part by part, and what its device has; None where that cannot be asked."""

    device: str
    num_envs: int
    num_steps: int  # 0 where nobody learns
    fixed: int  # context, code of kernels, networks: whatever the two numbers above are
    simulator: int
    environment: int
    rollout: int
    update: int
    free: int | None  # that this process may take, its own context included
    total: int | None

    @property
    def needed(self) -> int:
        """Give the sum of all parts."""
        return self.fixed + self.simulator + self.environment + self.rollout + self.update


def plan_memory(cfg: RunCfg, sim_name: str, device: torch.device) -> MemoryPlan:
    """Work out what training as ``cfg`` says takes, on the simulator and device that it resolves to.

    Raises ConfigError where algorithm, network and runner do not go together.
    """
    with torch.random.fork_rng(devices=[]):
        world = _one_world(cfg)
        task = world.task
        spec = TeamSpec(task.obs_sizes, task.action_sizes, task.state_size, task.state_type, task.mirror)
        try:
            team = ALGORITHMS[cfg.algorithm.name].cls(cfg.algorithm, cfg.network, spec, torch.device("cpu"), 0)
            storage = Storage(team.storage_shape(cfg.runner.num_steps, cfg.env.num_envs), "meta")
        except ValueError as error:
            raise ConfigError(f"algorithm, network and runner do not go together: {error}") from None
    weights = sum(p.numel() for module in (*team.unique_actors, team.critic) for p in module.parameters())
    rows, on_cpu = cfg.env.num_envs * cfg.runner.num_steps, device.type == "cpu"
    worlds = _plan_worlds(cfg, world, sim_name, device)
    evaluation = 0
    if cfg.runner.evaluation_interval is not None:
        share = min(cfg.runner.evaluation_envs, cfg.runner.evaluation_episodes) / worlds.num_envs
        evaluation = round(share * (worlds.simulator + worlds.environment))
    kept = bytes_of_last_states(num_rows(world.scene.model)) if cfg.logger.broken_worlds else 0
    return worlds._replace(
        num_steps=cfg.runner.num_steps,
        environment=worlds.environment + cfg.env.num_envs * kept,
        fixed=worlds.fixed + round(weights * _WEIGHT) + evaluation,
        rollout=round(sum(value.nbytes for value in vars(storage).values() if isinstance(value, Tensor)) * _SLACK),
        update=round(_update_floats(cfg, team, rows, on_cpu=on_cpu) * _FLOAT * _SLACK),
    )


def plan_playing(cfg: RunCfg, sim_name: str, device: torch.device) -> MemoryPlan:
    """Work out what the worlds of ``cfg`` take with nobody learning, a decision of the team included."""
    with torch.random.fork_rng(devices=[]):
        world = _one_world(cfg)
    worlds, sizes = _plan_worlds(cfg, world, sim_name, device), cfg.network.hidden_sizes
    decision = _passed_floats(cfg, sizes, worlds.num_envs, worlds.num_envs) * _FLOAT * _SLACK
    hidden = 2 * _gru_floats(cfg, sizes) * worlds.num_envs * world.task.num_agents * _FLOAT  # before and after
    return worlds._replace(environment=worlds.environment + round(decision + hidden))


def check_memory(plan: MemoryPlan) -> None:
    """Raise ConfigError, with the numbers that would fit, where a run does not; what is unknown fits."""
    if plan.free is None or plan.needed <= plan.free:
        return
    room = plan.free * _ROOM - plan.fixed
    in_worlds = plan.needed - plan.fixed  # all of it grows with the worlds
    in_rows = plan.rollout + plan.update
    num_envs = _rounded(plan.num_envs * room / in_worlds)
    num_steps = int(plan.num_steps * (room - in_worlds + in_rows) / in_rows) if plan.num_steps else 0
    ways = [f"env.num_envs to {num_envs}"] if num_envs >= 1 else []
    ways += [f"runner.num_steps to {num_steps}"] if num_steps >= 1 else []
    way_out = f"lower {' or '.join(ways)}" if ways else "end other programs that use it, or take another device"
    steps = f" with runner.num_steps={plan.num_steps}" if plan.num_steps else ""
    raise ConfigError(
        f"env.num_envs={plan.num_envs}{steps} takes {plan.needed / GIB:.1f} GiB, but "
        f"{plan.device} has {plan.free / GIB:.1f} GiB free; {way_out}"
    )


def describe(plan: MemoryPlan) -> str:
    """Word a plan in one line."""
    parts = ("simulator", "environment", "rollout", "update", "fixed")
    named = ", ".join(f"{name} {getattr(plan, name) / GIB:.2f}" for name in parts)
    room = "" if plan.free is None or plan.total is None else f"; {plan.free / GIB:.1f} of {plan.total / GIB:.1f} free"
    return f"Memory on {plan.device}: {plan.needed / GIB:.2f} GiB planned ({named}){room}."


def device_memory(device: torch.device) -> tuple[int | None, int | None]:
    """Give the bytes that this process may take of a device, its own context included, and all that it has."""
    if device.type != "cpu":
        free, total = torch.cuda.mem_get_info(device)
        return free + _CONTEXT, total
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
    except (ValueError, OSError, AttributeError):  # not every system says
        return None, None


def _one_world(cfg: RunCfg) -> World:
    """Make a single world on the host, from which all sizes follow."""
    host = torch.device("cpu")
    streams = Streams(0, 1, host)
    world = TASKS[cfg.task.name].make(cfg.task, replace(cfg.env, num_envs=1), host, streams)
    return world._replace(fields=model_fields(cfg.env.randomize, world.scene, world.fields, streams, 1))


def _plan_worlds(cfg: RunCfg, world: World, sim_name: str, device: torch.device) -> MemoryPlan:
    """Plan the worlds alone."""
    fixed, per_world = _simulator(world, sim_name, device)
    num_envs = cfg.env.num_envs
    free, total = device_memory(device)
    return MemoryPlan(
        device=str(device),
        num_envs=num_envs,
        num_steps=0,
        fixed=round(fixed),
        simulator=round(num_envs * per_world),
        environment=num_envs * (_ENV[0] + _ENV[1] * world.task.num_agents),
        rollout=0,
        update=0,
        free=free,
        total=total,
    )


def _simulator(world: World, sim_name: str, device: torch.device) -> tuple[float, float]:
    """Bytes that a process with this simulator takes in any case, and bytes a world."""
    model = world.scene.model
    fields = sum(values.numel() for values in world.fields.values())
    if sim_name == "mujoco":
        state = mujoco.mj_stateSize(model, int(mujoco.mjtState.mjSTATE_INTEGRATION))
        return _PROCESS, 8.0 * (state + model.nsensordata + fields)
    from mqe.sim.warp_memory import footprint  # needs the extra

    taken = footprint(model)
    per_world = taken.state + taken.step + fields * _FLOAT
    if device.type == "cpu":
        return _PROCESS + taken.fixed, per_world
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return _CONTEXT + _CODE + _STACKS * processors + taken.fixed, per_world


def _update_floats(cfg: RunCfg, team: OnPolicy, rows: int, *, on_cpu: bool) -> float:
    """Floats that an update holds at its fullest, with ``rows`` of the rollout.

    A pass without gradients is ``_passed_floats``, one with them ``_graph_floats``.
    """
    has_norm = cfg.network.use_layer_norm or cfg.algorithm.compat == "harl"
    actor_sizes = cfg.network.hidden_sizes
    critic_sizes = cfg.network.critic_hidden_sizes or actor_sizes
    views = team.num_agents if len(team.state_shape) == 2 else 1

    def cut(count: float) -> float:
        return min(count, CPU_TILE_ROWS) if on_cpu else count

    def trained(sizes: tuple[int, ...], seen: int, num_minibatches: int, count: float) -> float:
        shuffled = count * seen if num_minibatches > 1 else 0.0
        a_row = _graph_floats(sizes, has_norm=has_norm) + _GRU_KEPT * _gru_floats(cfg, sizes) + seen
        return shuffled + a_row * cut(count / num_minibatches)

    def passed(sizes: tuple[int, ...], count: float) -> float:
        return _passed_floats(cfg, sizes, count, cut(count))

    minibatches = cfg.algorithm.num_minibatches
    critic_minibatches = cfg.algorithm.critic_num_minibatches or minibatches
    seen_by_actor = max(team.spec.obs_sizes) + 3 * max(team.spec.action_sizes) + 3
    if cfg.algorithm.symmetry_coef > 0.0:  # the pass over mirrored observations
        seen_by_actor += max(team.spec.obs_sizes) + _graph_floats(actor_sizes, has_norm=has_norm)
    seen_by_critic = team.state_shape[-1] + 3 * team.num_values
    return max(
        trained(actor_sizes, seen_by_actor, minibatches, rows * team.graphs_at_once),
        trained(critic_sizes, seen_by_critic, critic_minibatches, rows * views),
        passed(actor_sizes, rows),
        passed(critic_sizes, rows * views),
    )


def _passed_floats(cfg: RunCfg, sizes: tuple[int, ...], rows: float, at_once: float) -> float:
    """Floats that a pass without gradients holds: of rows at once a layer's input and output, of all a GRU's parts."""
    return _GRU_PASSING * _gru_floats(cfg, sizes) * rows + 2.0 * max(sizes) * at_once


def _gru_floats(cfg: RunCfg, sizes: tuple[int, ...]) -> int:
    """Floats of the hidden state behind layers of ``sizes``; none without recurrence."""
    return cfg.network.num_recurrent_layers * sizes[-1] if cfg.network.use_recurrent_policy else 0


def _graph_floats(sizes: tuple[int, ...], *, has_norm: bool) -> int:
    """Floats a row that hidden layers of ``sizes`` hold at the fullest moment of a pass with gradients.

    A layer keeps its result until its own turn backward, when the gradients of its result, of what its activation was
    given and of its input come on top. With normalisation it keeps what it computed before and after its activation and
    after that, and one layer's gradient comes on top.
    """
    if has_norm:
        return 3 * sum(sizes) + max(sizes)
    inputs = (0, *sizes)  # the first layer's needs no gradient
    return max(sum(sizes[: k + 1]) + 2 * size + inputs[k] for k, size in enumerate(sizes))


def _rounded(count: float) -> int:
    """Round down to two significant binary digits, which nobody takes for a measurement."""
    whole = max(int(count), 0)
    step = 1 << max(0, whole.bit_length() - 2)
    return whole // step * step
