"""The gait's examination: a grid of commands, random commands, kicks, standing still, and pushing a box."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from mqe.geometry import quat_from_yaw
from mqe.locomotion import GaitController, planar_velocity
from mqe.objects import OBJECTS, ObjectCfg
from mqe.registry import SimCfg, make_simulator
from mqe.robots.go1 import DEFAULT_JOINT_POS, STANDING_HEIGHT
from mqe.scene import DECIMATION, STEP_DT, Scene, build_scene, pack_layout, read_state
from mqe.sim.base import Simulator
from mqe.state import SceneState
from mqe.streams import Streams
from mqe.task import Layout
from mqe.tasks.velocity import has_fallen

GRID = (-0.5, -0.25, 0.0, 0.25, 0.5)  # [m/s], [m/s], [rad/s]
BEYOND = 1.2  # the second grid is this much larger
GRID_TIME, GRID_MEASURED = 5.0, 3.0  # [s] a cell; the mean is taken over its last seconds
NUM_ROBOTS = 256  # walking on random commands, and as many again being kicked
RANDOM_TIME, RANDOM_HOLD, MAX_RANDOM_COMMAND = 20.0, 2.0, 0.5  # [s], [s] a command, [m/s, rad/s]
KICK_SPEED, KICK_INTERVAL = 0.5, 2.0  # [m/s], [s]
NUM_STANDING, STANDING_SETTLE, STANDING_TIME = 32, 1.0, 5.0  # robots, [s] before and [s] while drift is measured
NUM_PRESSING, PRESS_SPEED, PRESS_TIME, PRESS_START = 64, 0.5, 10.0, -1.1  # robots, [m/s], [s], [m] from the box
_JOINTS, _YAW, _COMMAND, _KICK = range(200, 204)  # streams

GaitPolicy = Callable[[Tensor], Tensor]


def evaluate_gait(policy: GaitPolicy, sim: SimCfg, seed: int) -> dict[str, float]:
    """Measure a gait policy, observation (N, 1, 47) to action (N, 1, 12); keys as the calculator prints them.

    ``velocity_error_x``, ``velocity_error_y`` [m/s] and ``yaw_rate_error`` [rad/s] are the worst cells of the grid.
    """
    return _walk(policy, sim, seed) | _press(policy, sim, seed)


@torch.no_grad()
def _walk(policy: GaitPolicy, sim_cfg: SimCfg, seed: int) -> dict[str, float]:
    """Run grid, larger grid, random commands, kicks and standing as groups of one batch of worlds."""
    cells = torch.tensor(list(itertools.product(GRID, repeat=3)))
    groups = {
        "grid": len(cells),
        "beyond": len(cells),
        "random": NUM_ROBOTS,
        "kicked": NUM_ROBOTS,
        "standing": NUM_STANDING,
    }
    ends = list(itertools.accumulate(groups.values()))
    rows = {name: slice(end - size, end) for (name, size), end in zip(groups.items(), ends, strict=True)}
    sim, scene, streams = _make_worlds(sim_cfg, None, ends[-1], seed)
    yaw = streams.between(-math.pi, math.pi, _YAW, torch.zeros(ends[-1], dtype=torch.int64, device=sim.device))
    state = _place(sim, scene, streams, yaw, start_x=0.0)
    controller = GaitController(policy, sim.num_envs, 1, sim.device)
    command = torch.zeros(sim.num_envs, 1, 3, device=sim.device)
    command[rows["grid"], 0] = cells.to(sim.device)
    command[rows["beyond"], 0] = BEYOND * cells.to(sim.device)
    wandering = slice(rows["random"].start, rows["kicked"].stop)

    fallen = torch.zeros(sim.num_envs, dtype=torch.bool, device=sim.device)
    total = torch.zeros(sim.num_envs, 3, device=sim.device)
    start, drift = state.robot_pos[:, 0, :2], torch.zeros(sim.num_envs, device=sim.device)
    for step in range(round(RANDOM_TIME / STEP_DT)):
        key = torch.full((sim.num_envs,), step, device=sim.device)
        if step % round(RANDOM_HOLD / STEP_DT) == 0:
            drawn = streams.between(-MAX_RANDOM_COMMAND, MAX_RANDOM_COMMAND, _COMMAND, key, (1, 3))
            command[wandering] = drawn[wandering]
        if step % round(KICK_INTERVAL / STEP_DT) == 0 and step > 0:
            angle = 2.0 * math.pi * streams.uniform(_KICK, key)[rows["kicked"]]
            sim.qvel[rows["kicked"], 0] += KICK_SPEED * torch.cos(angle)
            sim.qvel[rows["kicked"], 1] += KICK_SPEED * torch.sin(angle)
        state = _advance(sim, scene, controller, command, state)
        fallen |= has_fallen(state)[:, 0]
        time = (step + 1) * STEP_DT
        if GRID_TIME - GRID_MEASURED < time <= GRID_TIME:
            total += planar_velocity(state)[:, 0]
        if step + 1 == round(STANDING_SETTLE / STEP_DT):
            start = state.robot_pos[:, 0, :2]
        elif STANDING_SETTLE < time <= STANDING_SETTLE + STANDING_TIME:
            drift = torch.maximum(drift, (state.robot_pos[:, 0, :2] - start).norm(dim=1))
    sim.close()
    error = (total / round(GRID_MEASURED / STEP_DT) - command[:, 0])[rows["grid"]].abs().amax(dim=0).tolist()
    falls = {name: int(fallen[rows[name]].sum()) for name in groups}
    return {
        "velocity_error_x": error[0], "velocity_error_y": error[1], "yaw_rate_error": error[2],
        "falls": falls["random"], "num_robots": NUM_ROBOTS, "falls_on_grid": falls["grid"],
        "falls_beyond_grid": falls["beyond"], "falls_with_kicks_rate": falls["kicked"] / NUM_ROBOTS,
        "standing_drift_m": float(drift[rows["standing"]].max()), "standing_falls": falls["standing"],
    }  # fmt: skip


@torch.no_grad()
def _press(policy: GaitPolicy, sim_cfg: SimCfg, seed: int) -> dict[str, float]:
    """Walk into the 4 kg box and keep going."""
    sim, scene, streams = _make_worlds(sim_cfg, OBJECTS["cuboid"], NUM_PRESSING, seed)
    state = _place(sim, scene, streams, torch.zeros(NUM_PRESSING, device=sim.device), start_x=PRESS_START)
    controller = GaitController(policy, NUM_PRESSING, 1, sim.device)
    command = torch.zeros(NUM_PRESSING, 1, 3, device=sim.device)
    command[..., 0] = PRESS_SPEED
    fallen = torch.zeros(NUM_PRESSING, dtype=torch.bool, device=sim.device)
    start = state.object_pos[:, :2]
    for _ in range(round(PRESS_TIME / STEP_DT)):
        state = _advance(sim, scene, controller, command, state)
        fallen |= has_fallen(state)[:, 0]
    sim.close()
    distance = (state.object_pos[:, :2] - start).norm(dim=1)
    return {"press_falls": int(fallen.sum()), "press_distance_min_m": float(distance.min())}


def _make_worlds(cfg: SimCfg, obj: ObjectCfg | None, num_envs: int, seed: int) -> tuple[Simulator, Scene, Streams]:
    scene = build_scene(1, obj)
    sim = make_simulator(cfg, scene.model, num_envs)
    return sim, scene, Streams(seed, num_envs, sim.device)


def _place(sim: Simulator, scene: Scene, streams: Streams, yaw: Tensor, start_x: float) -> SceneState:
    """Stand every robot up, joints 10 % off the nominal stance at most."""
    n = sim.num_envs
    episode = torch.zeros(n, dtype=torch.int64, device=sim.device)
    zeros = torch.zeros(n, 3, device=sim.device)
    pos = zeros.clone()
    pos[:, 0], pos[:, 2] = start_x, STANDING_HEIGHT + 0.03
    object_pos = zeros.clone()
    if scene.object is not None:
        object_pos[:, 2] = scene.object.spawn_height
    default = torch.tensor(DEFAULT_JOINT_POS, device=sim.device)
    layout = Layout(
        robot_pos=pos.unsqueeze(1), robot_quat=quat_from_yaw(yaw).unsqueeze(1), robot_vel=zeros.new_zeros(n, 1, 6),
        joint_pos=default * streams.between(0.9, 1.1, _JOINTS, episode, (1, len(DEFAULT_JOINT_POS))),
        object_pos=object_pos, object_quat=quat_from_yaw(torch.zeros_like(yaw)), goal_pos=zeros,
    )  # fmt: skip
    sim.write(torch.ones(n, dtype=torch.bool, device=sim.device), *pack_layout(scene, layout))
    return read_state(sim, scene)


def _advance(
    sim: Simulator, scene: Scene, controller: GaitController, command: Tensor, state: SceneState
) -> SceneState:
    sim.ctrl.copy_(controller.targets(command, state).flatten(1))
    sim.step(DECIMATION)
    return read_state(sim, scene)
