"""The gait examination: a command grid, delayed targets, kicks, a wall, corner commands.

Every world has the motors' own lag, and every robot is dropped as the push task drops robots.
``docs/background/gait.md`` defines each metric and gives its target.
"""

import itertools
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mapush.extensions.gait.gait_worlds import GaitWorlds, Walker
from mapush.extensions.gait.measures import FootMotion, foot_motion, slip_share, swing_clearance
from mqe.world.objects import OBJECTS
from mqe.world.scene import GRAVITY, PHYSICS_DT, STEP_DT
from mqe.world.state import SceneState

GRID = (-0.5, -0.25, 0.0, 0.25, 0.5)  # [m/s], [m/s], [rad/s]
ROBOTS_A_CELL = 4
GRID_TIME = 5.0  # [s] per cell
GRID_MEASURED = 3.0  # [s] at the end of GRID_TIME, averaged in the metrics
LATENCIES = {"20ms": 0.02, "40ms": 0.04}  # [s]
LOW_SPEED = 0.1  # [m/s]
ROBOTS_AT_LOW_SPEED = 8  # in each of four directions
# Every command's mirror image is among them.
CORNERS = tuple(itertools.product((-0.5, 0.5), (-0.5, -0.3, 0.3, 0.5), (-0.5, -0.3, 0.3, 0.5)))
ROBOTS_A_CORNER = 128  # for each command
CORNER_TIME = 20.0  # [s]
NUM_ROBOTS = 256  # with random commands; as many more are pushed as well
RANDOM_TIME = 20.0  # [s]
RANDOM_HOLD = 2.0  # [s] per command
MAX_RANDOM_COMMAND = 0.5  # [m/s, rad/s]
KICK_SPEED = 1.0  # [m/s] added to a kicked robot's velocity
HARD_KICK_SPEED = 2.0  # [m/s] likewise
KICK_INTERVAL = 2.0  # [s]
NUM_STANDING = 32  # robots
STANDING_SETTLE = 2.0  # [s]
STANDING_TIME = 5.0  # [s]
NUM_PUSHING = 8  # robots
WALL_MASS = 2_000.0  # [kg] of a box that friction holds against any robot
WALL_DISTANCE = 1.3  # [m] from the robot's centre to the box's: an ANYmal reaches 0.53 m ahead
PUSHING_SPEED = 0.5  # [m/s] commanded
PUSHING_SETTLE = 0.5  # [s] standing after the drop
PUSHING_TIME = 7.0  # [s]
PUSHING_MEASURED = 3.0  # [s] at the end
# Numbers of random streams.
_COMMAND = 202
_KICK = 203
# Largest values of metrics
MOST = {
    "velocity_error_x": 0.06,
    "velocity_error_y": 0.06,
    "yaw_rate_error": 0.06,
    "falls_on_grid": 0,
    "velocity_error_20ms": 0.08,
    "falls_20ms": 0,
    "velocity_error_40ms": 0.12,
    "falls_40ms": 0,
    "velocity_error_low": 0.02,
    "stance_slip_share": 0.10,
    "falls": 0,
    "falls_with_kicks_rate": 0.02,
    "falls_with_hard_kicks_rate": 0.05,
    "standing_drift_m": 0.02,
    "standing_falls": 0,
    "push_falls": 0,
    "collapse_rate": 0.001,
    "collapse_rate_worst_command": 0.01,
}
LEAST = {
    "foot_clearance_min_m": 0.04,
    "push_ahead_share": 0.39,  # 50 N for the weight of a Go1, 128.5 N
}
# Metrics without a target. A push gait has learned with loads.
EXEMPT = {
    "velocity": ("push_ahead_share",),
    "push": tuple(name for name in MOST if "error" in name),
}


def evaluate_gait(walker: Walker, kind: str, say: Callable[[str], None]) -> dict[str, float]:
    """Measure a gait in every part of the examination.

    ``kind`` is one of ``EXEMPT``. ``say`` gets the name of each part before it begins.
    """
    metrics: dict[str, float] = {}
    for name, part in (
        ("a grid of commands, with and without delay", track),
        ("random commands, kicks, standing", wander),
        ("pushing a wall", push_wall),
        ("corner commands", walk_corners),
    ):
        say(f"Examining the gait: {name}")
        metrics |= part(walker)
    missed = missed_targets(metrics, kind)
    say(f"Targets of a {kind} gait missed: {', '.join(missed) or 'none'}")
    return metrics | {"targets_missed": len(missed)}


def missed_targets(metrics: Mapping[str, float], kind: str) -> list[str]:
    """Return the names of metrics that miss their targets for a kind of gait."""
    missed = []
    for name, value in metrics.items():
        is_met = LEAST.get(name, -math.inf) <= value <= MOST.get(name, math.inf)
        if not (is_met or name in EXEMPT[kind]):
            missed.append(name)
    return missed


def track(walker: Walker) -> dict[str, float]:
    """Follow the command grid with and without delay, and slow commands."""
    cells = torch.tensor(list(itertools.product(GRID, repeat=3)))
    slow = LOW_SPEED * torch.tensor(
        [[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0]]
    )
    every_cell = cells.repeat_interleave(ROBOTS_A_CELL, dim=0)
    groups = {"grid": every_cell, **dict.fromkeys(LATENCIES, every_cell)}
    groups["low"] = slow.repeat_interleave(ROBOTS_AT_LOW_SPEED, dim=0)
    rows, command = _stack(groups)
    late = torch.zeros(len(command), dtype=torch.int64)
    for name, latency in LATENCIES.items():
        late[rows[name]] = round(latency / PHYSICS_DT)

    worlds = GaitWorlds(walker, len(command), latency=late)
    command = command.to(worlds.device)
    cells = cells.to(worlds.device)
    slow = slow.to(worlds.device)
    feet: list[FootMotion] = []

    def record(state: SceneState) -> None:
        recorded = state.like(state.rows[:, : len(every_cell)])
        feet.append(foot_motion(recorded, worlds.robots))

    # Walk; record the end.
    for _ in range(round((GRID_TIME - GRID_MEASURED) / STEP_DT)):
        worlds.advance(command)
    velocity = []
    for _ in range(round(GRID_MEASURED / STEP_DT)):
        worlds.advance(command, record)
        velocity.append(worlds.velocity)
    worlds.close()

    # Tracking errors and falls.
    mean = torch.stack(velocity).mean(dim=0)

    def errors(name: str, commands: Tensor) -> Tensor:
        reached = mean[rows[name]].unflatten(0, (len(commands), -1)).mean(dim=1)
        return (reached - commands).abs()

    x, y, turn = errors("grid", cells).amax(dim=0).tolist()
    metrics: dict[str, float] = {
        "velocity_error_x": x,
        "velocity_error_y": y,
        "yaw_rate_error": turn,
        "falls_on_grid": worlds.num_falls(rows["grid"]),
    }
    for name in LATENCIES:
        x, y, _ = errors(name, cells).amax(dim=0).tolist()
        metrics[f"velocity_error_{name}"] = max(x, y)
        metrics[f"falls_{name}"] = worlds.num_falls(rows[name])
    metrics["velocity_error_low"] = float(errors("low", slow)[slow != 0.0].max())

    # Feet of walking robots, (T, N, 4) in T physics steps
    is_walking = every_cell.abs().amax(dim=1) > 0.0
    clearance, foot_speed = (
        torch.stack(part)[:, is_walking, 0] for part in zip(*feet, strict=True)
    )
    peaks = swing_clearance(clearance, PHYSICS_DT).unflatten(0, (-1, ROBOTS_A_CELL)).mean(dim=1)
    return metrics | {
        "foot_clearance_min_m": float(peaks.min()),
        # Speeds in the Go1's size
        "stance_slip_share": slip_share(clearance, foot_speed / worlds.robots.cfgs[0].time_scale),
    }


def wander(walker: Walker) -> dict[str, float]:
    """Follow random commands, without kicks and with two kinds of them, and stand still."""
    sizes = {
        "random": NUM_ROBOTS,
        "kicked": NUM_ROBOTS,
        "standing": NUM_STANDING,
        "kicked hard": NUM_ROBOTS,
    }
    rows, command = _stack({name: torch.zeros(size, 3) for name, size in sizes.items()})
    worlds = GaitWorlds(walker, len(command))
    command = command.to(worlds.device)
    standing = rows["standing"]
    kicks = {"kicked": KICK_SPEED, "kicked hard": HARD_KICK_SPEED}
    is_walking = torch.ones(len(command), 1, dtype=torch.bool, device=worlds.device)
    is_walking[standing] = False
    start = None
    drift = torch.zeros(NUM_STANDING, device=worlds.device)

    for step in range(round(RANDOM_TIME / STEP_DT)):
        key = torch.full((len(command),), step, device=worlds.device)
        if step % round(RANDOM_HOLD / STEP_DT) == 0:
            drawn = worlds.streams.between(
                -MAX_RANDOM_COMMAND, MAX_RANDOM_COMMAND, _COMMAND, key, (3,)
            )
            command = torch.where(is_walking, drawn, command)
        if step % round(KICK_INTERVAL / STEP_DT) == 0 and step > 0:
            turn = 2.0 * math.pi * worlds.streams.uniform(_KICK, key)
            for name, speed in kicks.items():
                kicked = rows[name]
                worlds.sim.data.qvel[kicked, 0] += speed * torch.cos(turn[kicked])
                worlds.sim.data.qvel[kicked, 1] += speed * torch.sin(turn[kicked])
        if step == round(STANDING_SETTLE / STEP_DT):
            start = worlds.state.robot_pos[standing, 0, :2]
        worlds.advance(command)
        if start is not None and step < round((STANDING_SETTLE + STANDING_TIME) / STEP_DT):
            distance = (worlds.state.robot_pos[standing, 0, :2] - start).norm(dim=1)
            drift = torch.maximum(drift, distance)
    worlds.close()

    falls = {name: worlds.num_falls(rows[name]) for name in sizes}
    return {
        "falls": falls["random"],
        "falls_with_kicks_rate": falls["kicked"] / NUM_ROBOTS,
        "falls_with_hard_kicks_rate": falls["kicked hard"] / NUM_ROBOTS,
        "standing_drift_m": float(drift.max()),
        "standing_falls": falls["standing"],
    }


def push_wall(walker: Walker, speed: float = PUSHING_SPEED) -> dict[str, float]:
    """Walk into a wall with commands of ``speed`` [m/s] and measure the mean force."""
    wall = OBJECTS["cuboid"].with_mass(WALL_MASS)
    worlds = GaitWorlds(walker, NUM_PUSHING, obj=wall, start=-WALL_DISTANCE)
    forces = []

    def watch(state: SceneState) -> None:
        forces.append(float(state.contact_force[:, 0, 0].mean()))

    for step in range(round(PUSHING_TIME / STEP_DT)):
        has_landed = step * STEP_DT > PUSHING_SETTLE
        is_measured = step >= round((PUSHING_TIME - PUSHING_MEASURED) / STEP_DT)
        command = worlds.along_x(speed if has_landed else 0.0)
        worlds.advance(command, watch if is_measured else None)
    worlds.close()
    force = sum(forces) / len(forces)
    return {
        "push_ahead_n": force,
        # Friction holds in proportion to weight.
        "push_ahead_share": force / (worlds.scene.robots[0].mass * GRAVITY),
        "push_falls": worlds.num_falls(),
    }


def walk_corners(walker: Walker) -> dict[str, float]:
    """Follow the corner commands from the drop on, and count collapsing robots."""
    command = torch.tensor(CORNERS).repeat_interleave(ROBOTS_A_CORNER, dim=0)
    worlds = GaitWorlds(walker, len(command))
    command = command.to(worlds.device)
    for _ in range(round(CORNER_TIME / STEP_DT)):
        worlds.advance(command)
    worlds.close()
    rate = worlds.collapsed.float().unflatten(0, (len(CORNERS), ROBOTS_A_CORNER)).mean(dim=1)
    return {"collapse_rate": float(rate.mean()), "collapse_rate_worst_command": float(rate.max())}


def _stack(groups: Mapping[str, Tensor]) -> tuple[dict[str, slice], Tensor]:
    """Return each group's rows, and the batch's commands (N, 3)."""
    ends = itertools.accumulate(len(group) for group in groups.values())
    rows = {
        name: slice(end - len(group), end)
        for (name, group), end in zip(groups.items(), ends, strict=True)
    }
    return rows, torch.cat(list(groups.values()))
