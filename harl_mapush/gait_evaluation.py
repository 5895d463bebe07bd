"""The gait's examination: grids of commands, late targets, corner commands, kicks, standing, and pushing a box.

Every world has the motors' own lag, and every robot is dropped as the push task drops robots. ``docs/gait.md`` defines
each figure and says what it should be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from harl_mapush.gait_measures import (
    asymmetry,
    cost_of_transport,
    fast_power_share,
    foot_motion,
    motor_torque,
    slip_share,
    stance_depth,
    swing_clearance,
)
from harl_mapush.gait_worlds import GaitPolicy, GaitWorlds, PhysicsStep
from mqe.objects import OBJECTS
from mqe.registry import SimCfg
from mqe.scene import PHYSICS_DT, STEP_DT

GRID = (-0.5, -0.25, 0.0, 0.25, 0.5)  # [m/s], [m/s], [rad/s]
FORWARD = (0.5, 0.0, 0.0)  # a cell of the grid
BEYOND = 1.2  # the second grid is this much larger
ROBOTS_A_CELL = 4
GRID_TIME, GRID_MEASURED = 5.0, 3.0  # [s] a cell; figures are taken over its last seconds
SPECTRUM_TIME = 2.4  # [s] at the end: six cycles of the trot
LATENCIES = (0.02, 0.04)  # [s]
LOW_SPEED, ROBOTS_AT_LOW_SPEED = 0.1, 8  # [m/s], for each of four directions
CORNERS = tuple(itertools.product((-0.5, 0.5), (-0.5, -0.3, 0.3, 0.5), (-0.5, -0.3, 0.3, 0.5)))
ROBOTS_A_CORNER, CORNER_TIME = 128, 10.0  # robots for each command, [s]
NUM_ROBOTS = 256  # walking on random commands, and as many again being kicked
RANDOM_TIME, RANDOM_HOLD, MAX_RANDOM_COMMAND = 20.0, 2.0, 0.5  # [s], [s] a command, [m/s, rad/s]
KICK_SPEED, KICK_INTERVAL = 1.0, 2.0  # [m/s], [s]
NUM_STANDING, STANDING_SETTLE, STANDING_TIME = 32, 1.0, 5.0  # robots, [s] before and [s] while drift is measured
NUM_PRESSING, PRESS_SPEED, PRESS_TIME, PRESS_START = 64, 0.5, 10.0, -1.1  # robots, [m/s], [s], [m] from the box
_COMMAND, _KICK = 202, 203  # streams

Figure = float | list[float] | None


def evaluate_gait(
    policy: GaitPolicy, sim: SimCfg, seed: int, say: Callable[[str], None] | None = None
) -> dict[str, Figure]:
    """Measure a gait policy, observation (N, 1, 59) to action (N, 1, 12); keys as the calculator prints them.

    ``say`` is told which part comes next.
    """
    figures: dict[str, Figure] = {}
    parts = {
        "commands on a grid, on time and late": track,
        "random commands, kicks, standing": wander,
        "pushing a box": press,
        "corner commands": walk_corners,
    }
    for name, part in parts.items():
        if say is not None:
            say(f"Examining: {name}")
        figures |= part(policy, sim, seed)
    return figures


class Walk(NamedTuple):
    """T physics steps of N robots."""

    clearance: Tensor  # (T, N, 4) [m] of the feet's lowest points
    foot_speed: Tensor  # (T, N, 4) [m/s]
    torque: Tensor  # (T, N, 12) [N m]
    joint_vel: Tensor  # (T, N, 12) [rad/s]


class Recorder:
    """Keeps what the first N robots do in every physics step."""

    def __init__(self, num_robots: int, torque_limit: Tensor) -> None:
        """Watch ``num_robots`` robots whose motors give at most ``torque_limit`` (12,) [N m]."""
        self._num_robots, self._limit = num_robots, torque_limit
        self._steps: list[Walk] = []

    def watch(self, step: PhysicsStep) -> None:
        """Keep one physics step."""
        state = step.state.like(step.state.rows[:, : self._num_robots])
        target, joint_pos, joint_vel = (
            step.motor_target[: self._num_robots],
            state.joint_pos[:, 0],
            state.joint_vel[:, 0],
        )
        feet = foot_motion(state)
        torque = motor_torque(target, joint_pos, joint_vel, self._limit)
        self._steps.append(Walk(feet.clearance[:, 0], feet.speed[:, 0], torque, joint_vel))

    def walk(self) -> Walk:
        """Return all steps."""
        return Walk(*(torch.stack(part) for part in zip(*self._steps, strict=True)))


@torch.no_grad()
def track(
    policy: GaitPolicy, sim: SimCfg, seed: int, grid: Sequence[float] = GRID, robots_a_cell: int = ROBOTS_A_CELL
) -> dict[str, Figure]:
    """Walk over the grid of commands, on time and late, over a larger one, and slowly."""
    cells = torch.tensor(list(itertools.product(grid, repeat=3)))
    slow = LOW_SPEED * torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0]])
    repeated = cells.repeat_interleave(robots_a_cell, dim=0)
    groups = {"grid": repeated}
    groups |= {f"{round(1000 * latency)}ms": repeated for latency in LATENCIES}
    groups |= {"beyond": BEYOND * cells, "low": slow.repeat_interleave(ROBOTS_AT_LOW_SPEED, dim=0)}
    rows, command = _stack(groups)
    late = torch.zeros(len(command), dtype=torch.int64)
    for latency in LATENCIES:
        late[rows[f"{round(1000 * latency)}ms"]] = round(latency / PHYSICS_DT)

    worlds = GaitWorlds(policy, sim, seed, len(command), latency=late)
    command = command.to(worlds.device)
    limit = torch.as_tensor(worlds.scene.model.actuator_forcerange[:, 1], dtype=torch.float32, device=worlds.device)
    recorder = Recorder(len(repeated), limit)
    total, targets = torch.zeros_like(command), []
    for step in range(round(GRID_TIME / STEP_DT)):
        is_measured = step >= round((GRID_TIME - GRID_MEASURED) / STEP_DT)
        worlds.advance(command, recorder.watch if is_measured else None)
        if is_measured:
            total += worlds.velocity
            targets.append(worlds.targets[: len(repeated)])
    worlds.close()
    mean = total / len(targets)

    def of_cells(name: str) -> Tensor:
        return mean[rows[name]].unflatten(0, (len(cells), robots_a_cell)).mean(dim=1)

    cells = cells.to(worlds.device)
    error = (of_cells("grid") - cells).abs().amax(dim=0).tolist()
    falls = {name: int(worlds.fallen[rows[name]].sum()) for name in groups}
    figures: dict[str, Figure] = {
        "velocity_error_x": error[0], "velocity_error_y": error[1], "yaw_rate_error": error[2],
        "falls_on_grid": falls["grid"], "falls_beyond_grid": falls["beyond"],
    }  # fmt: skip
    for name in (f"{round(1000 * latency)}ms" for latency in LATENCIES):
        error = (of_cells(name) - cells).abs().amax(dim=0).tolist()
        figures |= {f"velocity_error_{name}": max(error[:2]), f"yaw_rate_error_{name}": error[2]}
        figures[f"falls_{name}"] = falls[name]
    slow_mean = mean[rows["low"]].unflatten(0, (len(slow), -1)).mean(dim=1)
    error_low = ((slow_mean - slow.to(worlds.device)) * (slow != 0).to(worlds.device)).abs().max()
    figures["velocity_error_low"] = float(error_low)
    figures["asymmetry"] = asymmetry(cells, of_cells("grid"))
    return figures | _describe_walk(repeated, recorder.walk(), torch.stack(targets), mean[rows["grid"]], worlds.mass)


def _describe_walk(command: Tensor, walk: Walk, targets: Tensor, velocity: Tensor, mass: float) -> dict[str, Figure]:
    """Return figures of feet and motors, of robots with ``command`` (N, 3), several a command and side by side."""
    device = walk.clearance.device
    is_walking = (command.abs().amax(dim=1) > 0.0).to(device)
    is_forward = (command == torch.tensor(FORWARD)).all(dim=1).to(device)
    cells, count = torch.unique_consecutive(command[is_walking.cpu()], dim=0, return_counts=True)
    peaks = swing_clearance(walk.clearance[:, is_walking], PHYSICS_DT)  # (N, 4)
    peaks = peaks.unflatten(0, (len(cells), int(count[0]))).mean(dim=1)
    clearance, speed = walk.clearance[:, is_walking], walk.foot_speed[:, is_walking]
    forward_speed = float(velocity[is_forward, 0].mean())
    return {
        "foot_clearance_min_m": float(peaks.min()), "foot_clearance_m": peaks.mean(dim=0).tolist(),
        "stance_slip_share": slip_share(clearance, speed), "stance_depth_p95_m": stance_depth(clearance),
        "cost_of_transport": cost_of_transport(
            walk.torque[:, is_forward], walk.joint_vel[:, is_forward], mass, forward_speed
        ),
        "peak_torque_nm": float(walk.torque[:, is_walking].abs().max()),
        "target_power_above_8hz": fast_power_share(
            targets[-round(SPECTRUM_TIME / STEP_DT) :, is_forward], STEP_DT
        ),
    }  # fmt: skip


@torch.no_grad()
def wander(
    policy: GaitPolicy, sim: SimCfg, seed: int, num_robots: int = NUM_ROBOTS, duration: float = RANDOM_TIME
) -> dict[str, Figure]:
    """Walk on random commands, with and without kicks, and stand."""
    groups = {name: torch.zeros(n, 3) for name, n in
              (("random", num_robots), ("kicked", num_robots), ("standing", NUM_STANDING))}  # fmt: skip
    rows, command = _stack(groups)
    worlds = GaitWorlds(policy, sim, seed, len(command))
    command = command.to(worlds.device)
    walking = slice(0, rows["kicked"].stop)
    start, drift = worlds.state.robot_pos[:, 0, :2], torch.zeros(len(command), device=worlds.device)
    for step in range(round(duration / STEP_DT)):
        key = torch.full((len(command),), step, device=worlds.device)
        if step % round(RANDOM_HOLD / STEP_DT) == 0:
            drawn = worlds.streams.between(-MAX_RANDOM_COMMAND, MAX_RANDOM_COMMAND, _COMMAND, key, (3,))
            command[walking] = drawn[walking]
        if step % round(KICK_INTERVAL / STEP_DT) == 0 and step > 0:
            angle = 2.0 * math.pi * worlds.streams.uniform(_KICK, key)[rows["kicked"]]
            worlds.sim.qvel[rows["kicked"], 0] += KICK_SPEED * torch.cos(angle)
            worlds.sim.qvel[rows["kicked"], 1] += KICK_SPEED * torch.sin(angle)
        worlds.advance(command)
        if step + 1 == round(STANDING_SETTLE / STEP_DT):
            start = worlds.state.robot_pos[:, 0, :2]
        elif STANDING_SETTLE < worlds.time <= STANDING_SETTLE + STANDING_TIME + 0.5 * STEP_DT:
            drift = torch.maximum(drift, (worlds.state.robot_pos[:, 0, :2] - start).norm(dim=1))
    worlds.close()
    falls = {name: int(worlds.fallen[rows[name]].sum()) for name in groups}
    return {
        "falls": falls["random"], "num_robots": num_robots, "falls_with_kicks_rate": falls["kicked"] / num_robots,
        "standing_drift_m": float(drift[rows["standing"]].max()), "standing_falls": falls["standing"],
    }  # fmt: skip


@torch.no_grad()
def press(
    policy: GaitPolicy, sim: SimCfg, seed: int, num_robots: int = NUM_PRESSING, duration: float = PRESS_TIME
) -> dict[str, Figure]:
    """Walk into the 4 kg box and keep going."""
    worlds = GaitWorlds(policy, sim, seed, num_robots, obj=OBJECTS["cuboid"], start=(PRESS_START, 0.0))
    command = torch.tensor([PRESS_SPEED, 0.0, 0.0], device=worlds.device).expand(num_robots, 3)
    start = worlds.state.object_pos[:, :2]
    for _ in range(round(duration / STEP_DT)):
        worlds.advance(command)
    worlds.close()
    distance = (worlds.state.object_pos[:, :2] - start).norm(dim=1)
    return {"press_falls": int(worlds.fallen.sum()), "press_distance_min_m": float(distance.min())}


@torch.no_grad()
def walk_corners(
    policy: GaitPolicy, sim: SimCfg, seed: int, robots_a_command: int = ROBOTS_A_CORNER, duration: float = CORNER_TIME
) -> dict[str, Figure]:
    """Follow the corner commands and their mirror images from the drop on, and count the robots that collapse."""
    corners = torch.tensor(CORNERS)
    command = corners.repeat_interleave(robots_a_command, dim=0)
    worlds = GaitWorlds(policy, sim, seed, len(command))
    command = command.to(worlds.device)
    for _ in range(round(duration / STEP_DT)):
        worlds.advance(command)
    worlds.close()
    rate = worlds.collapsed.unflatten(0, (len(corners), robots_a_command)).float().mean(dim=1)
    worst = int(rate.argmax())
    return {
        "collapse_rate": float(rate.mean()), "collapse_rate_worst_command": float(rate[worst]),
        "collapse_worst_command": list(CORNERS[worst]) if float(rate[worst]) > 0.0 else None,
    }  # fmt: skip


def _stack(groups: dict[str, Tensor]) -> tuple[dict[str, slice], Tensor]:
    """Return which rows each group gets in one batch, and the batch's commands (N, 3)."""
    ends = list(itertools.accumulate(len(group) for group in groups.values()))
    rows = {name: slice(end - len(group), end) for (name, group), end in zip(groups.items(), ends, strict=True)}
    return rows, torch.cat(list(groups.values()))
