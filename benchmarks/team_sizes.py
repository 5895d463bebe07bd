"""The cost of a team's size on a CPU core, and the time that MuJoCo's sparse solver would save.

``python benchmarks/team_sizes.py [--team pretrained:any] [--num_agents 1 2 4 8]`` prints two JSON
lines for each number of robots. ``play``: CPU seconds of a simulated second of one world, with the
policy and without drawing. ``jacobian``: microseconds of a physics step with dense and with sparse
Jacobians, in turns, from states of the team at work, and how far generalised velocities after a
step are from those of a solver that runs to convergence (the largest of a state; quantiles).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import mujoco
import torch
from measuring import emit
from solver import EVERY, QUANTILES, SETTLING, State, advance, limited, without_limits
from torch import Tensor

from harl_mapush.evaluation.policies import load_policy
from harl_mapush.process import limit_threads
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.world.scene import PHYSICS_DT, STEP_DT

SECONDS = 20.0  # of the world
WORLDS = 16
JACOBIANS = {
    "dense": mujoco.mjtJacobian.mjJAC_DENSE,
    "sparse": mujoco.mjtJacobian.mjJAC_SPARSE,
}


def main() -> int:
    """Print the lines of every size."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--team", default="pretrained:any")
    parser.add_argument("--num_agents", type=int, nargs="+", default=list(range(1, 9)))
    parser.add_argument("--tangled", type=float, default=0.5, help="share of tangled starts")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    limit_threads()
    torch.set_num_threads(1)
    for num_agents in arguments.num_agents:
        env, policy = team(arguments.team, num_agents, num_envs=1)
        took, _ = played(env, policy)
        emit(part="play", num_agents=num_agents, cpu_s_of_a_second=took / SECONDS)
        env, policy = team(arguments.team, num_agents, WORLDS, arguments.tangled)
        _, states = played(env, policy)
        emit(
            part="jacobian",
            num_agents=num_agents,
            num_velocities=env.scene.model.nv,
            states=WORLDS * len(states),
            **compared(env.scene.model, states, arguments.rounds),
        )
    return 0


def team(
    name: str, num_agents: int, num_envs: int, tangled: float = 0.0
) -> tuple[MultiAgentEnv, Any]:
    """Return worlds of a box of 4 kg on one core, of which a share begins with two robots' legs
    tangled, and the team's policy.
    """
    folder = checkpoint.resolve(name)
    over = {
        "env": {"num_envs": num_envs, "num_agents": num_agents},
        "sim": {"name": "mujoco", "device": "cpu", "num_threads": 1},
        "task": {
            "object": "cuboid",
            "object_mass": 4.0,
            "shapes": None,
            "spawn": "separated",
            "tangled_share": tangled if num_agents > 1 else 0.0,
            "collapse_ends": False,
        },
    }
    cfg = evaluation_worlds.settings(folder, over)
    env = make_env(cfg.env, cfg.sim, cfg.task, seed=0)
    return env, load_policy(folder, cfg, env)


@torch.no_grad()
def played(env: MultiAgentEnv, policy: Any) -> tuple[float, list[State]]:
    """Return the CPU seconds that ``SECONDS`` of the worlds took, and states on the way."""
    states: list[State] = []
    step = env.sim.step
    count = 0

    def recorded(decimation: int, ctrl: Tensor) -> None:
        nonlocal count
        count += 1
        if env.num_envs > 1 and count > SETTLING and count % EVERY == 0:
            states.append({name: value.clone() for name, value in env.sim.state_dict().items()})
        step(decimation, ctrl)

    env.sim.step = recorded
    obs, _ = env.reset()
    start = time.process_time()
    for _ in range(round(SECONDS / STEP_DT / env.decision_period)):
        obs = env.step(policy(obs)).obs
    took = time.process_time() - start
    env.sim.step = step
    return took, states


def compared(model: mujoco.MjModel, states: list[State], rounds: int) -> dict[str, Any]:
    """Return time and error of a physics step by kind of Jacobian."""
    dense = limited(model, model.opt.iterations)
    dense.opt.jacobian = JACOBIANS["dense"]
    truth, _ = advance(MujocoBatchSimulator(without_limits(dense), WORLDS, 1), states)
    sims = {}
    found: dict[str, Any] = {}
    for name, jacobian in JACOBIANS.items():
        own = limited(model, model.opt.iterations)
        own.opt.jacobian = jacobian
        sims[name] = MujocoBatchSimulator(own, WORLDS, 1)
        error = (advance(sims[name], states)[0] - truth).abs().amax(dim=-1).flatten()
        found[f"error_{name}"] = {str(q): float(torch.quantile(error, q)) for q in QUANTILES}
    steps = round(STEP_DT / PHYSICS_DT)
    times: dict[str, list[float]] = {name: [] for name in sims}
    for _ in range(rounds):
        for name, sim in sims.items():
            spent = 0.0
            for state in states:
                sim.load_state_dict(state)
                start = time.process_time()
                sim.step(steps)
                spent += time.process_time() - start
            times[name].append(1e6 * spent / (len(states) * steps * WORLDS))
    for name, took in times.items():
        found[f"us_{name}"] = statistics.median(took)
    ratios = [a / b for a, b in zip(times["sparse"], times["dense"], strict=True)]
    found["sparse_over_dense"] = [min(ratios), statistics.median(ratios), max(ratios)]
    return found


if __name__ == "__main__":
    sys.exit(main())
