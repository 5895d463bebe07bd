"""Measure what fewer solver iterations would cost: one physics step from many states of a pushing
team.

``python benchmarks/solver.py [--checkpoint pretrained:cuboid] [--num_envs 64] [--iterations 10 8 6
5 4]`` prints one JSON line for every limit: how far generalised velocities after one physics step
of MuJoCo Warp are from those of MuJoCo in float64 run to convergence (the largest of a state;
quantiles over states), and the share of states that need more.
"""

from __future__ import annotations

import argparse
import copy
import sys
from typing import Any

import mujoco
import torch
from measuring import emit, lines_of_simulators, name_of
from torch import Tensor

from harl_mapush import config
from harl_mapush.runs import checkpoint
from harl_mapush.runs.policy import load_team
from mapush.extensions.harl import harl_format  # noqa: F401, registers
from mqe.registry import make_env, resolve_sim
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.sim.mujoco_warp import MujocoWarpSimulator

# how states are taken: every 14th control step after the first 20
NUM_DECISIONS = 60
EVERY = 14
SETTLING = 20
QUANTILES = (0.5, 0.9, 0.99, 1.0)

State = dict[str, Tensor]


def main() -> int:
    """Print a line a limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", default="pretrained:cuboid")
    parser.add_argument("--num_envs", type=int, default=64)
    parser.add_argument("--iterations", type=int, nargs="+", default=[10, 8, 6, 5, 4])
    arguments = parser.parse_args()
    with lines_of_simulators():
        model, states = pushing(arguments.checkpoint, arguments.num_envs)
        truth, _ = advance(MujocoBatchSimulator(without_limits(model), arguments.num_envs), states)
        device = resolve_sim(config.resolve({}, {"sim": {"name": "warp"}})[0].sim)[1]
        _, needed = advance(
            MujocoWarpSimulator(without_limits(model), arguments.num_envs, device), states
        )
        for iterations in arguments.iterations:
            sim = MujocoWarpSimulator(limited(model, iterations), arguments.num_envs, device)
            velocity, _ = advance(sim, states)
            error = (velocity - truth).abs().amax(dim=-1).flatten()
            emit(
                part="solver",
                device=name_of(device),
                states=len(error),
                iterations=iterations,
                error={str(q): float(torch.quantile(error, q)) for q in QUANTILES},
                share_that_needs_more=float((needed > iterations).double().mean()),
            )
    return 0


@torch.no_grad()
def pushing(what: str, num_envs: int) -> tuple[mujoco.MjModel, list[State]]:
    """Return the scene's model and states of ``num_envs`` worlds in which a trained team is at
    work, on the CPU.
    """
    folder = checkpoint.resolve(what)
    sim = {"name": "mujoco", "device": "cpu"}
    cfg, _ = config.resolve(
        checkpoint.read_config(folder), {"env": {"num_envs": num_envs}, "sim": sim}
    )
    env = make_env(cfg.env, cfg.sim, cfg.task, 3)
    team = load_team(cfg, folder, env)
    step = env.sim.step
    states = []
    count = 0

    def recorded(decimation: int, ctrl: torch.Tensor) -> None:
        nonlocal count
        count += 1
        if count > SETTLING and count % EVERY == 0:
            states.append({name: value.clone() for name, value in env.sim.state_dict().items()})
        step(decimation, ctrl)

    env.sim.step = recorded
    obs, _ = env.reset()
    for _ in range(NUM_DECISIONS):
        obs = env.step(team(obs)).obs
    return env.scene.model, states


def limited(model: mujoco.MjModel, iterations: int) -> mujoco.MjModel:
    """Copy a model with another limit of solver iterations."""
    model = copy.copy(model)
    model.opt.iterations = iterations
    return model


def without_limits(model: mujoco.MjModel) -> mujoco.MjModel:
    """Copy a model with solver limits that no state reaches."""
    model = limited(model, 100)
    model.opt.tolerance = 1e-12
    model.opt.ls_iterations = 100
    return model


def advance(sim: Any, states: list[State]) -> tuple[Tensor, Tensor]:
    """Take one physics step from each state; give velocities (S, N, nv) and the iterations it took
    (S, N).
    """
    velocities = []
    iterations = []
    for state in states:
        if isinstance(sim, MujocoWarpSimulator):
            single = {name: value.to(sim.device, torch.float32) for name, value in state.items()}
            state = single | {"time": single["time"].view(-1), "size": torch.tensor(sim.size)}
        sim.load_state_dict(state)
        sim.step(1)
        velocities.append(sim.data.qvel.double().cpu().clone())
        if isinstance(sim, MujocoWarpSimulator):
            iterations.append(torch.from_numpy(sim._data.solver_niter.numpy().copy()))
    return torch.stack(velocities), torch.stack(iterations) if iterations else torch.zeros(0)


if __name__ == "__main__":
    sys.exit(main())
