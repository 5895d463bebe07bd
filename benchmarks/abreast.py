"""How far robots push that are in place already and only walk straight ahead.

``python benchmarks/abreast.py --object cuboid --num_agents 4 --force 162.6 --spacing 0.36`` puts
the robots abreast behind the object, nose to it, and lets them walk straight ahead for 12 s, each
in its lane. It prints a JSON line: how far the object went in each world, and how many worlds ended
before, by robots that touched or whose legs tangled. A team needs several seconds more to get
there, and the starts of ``mapush test`` ask for 0.5 to 2.0 m in 20 s. It is no bound: a team that
presses on a cylinder from several sides does better.
"""

from __future__ import annotations

import argparse
import math
import sys

import torch
from measuring import emit
from torch import Tensor

from harl_mapush import config
from harl_mapush.process import limit_threads
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env
from mqe.world.geometry import quat_from_rpy, rotation_matrix, yaw_of
from mqe.world.objects import OBJECTS
from mqe.world.scene import STEP_DT

GAP = 0.45  # [m] from a trunk's middle to the side that the robot pushes
SECONDS = 12.0
HEADING = 3.0  # turning speed for each radian off straight ahead
LANE = 2.0  # sideways speed for each metre off the lane
# Half the object's length ahead [m], and its yaw with the widest side to the robots [rad].
PLACES = {"cuboid": (0.6, 0.0), "tblock": (0.25, -0.5 * math.pi), "beam": (0.2, 0.0)}


def main() -> int:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--object", choices=[*PLACES, "cylinder"], default="cuboid")
    parser.add_argument("--num_agents", type=int, default=4)
    parser.add_argument("--force", type=float, default=162.6, help="at which the object slides [N]")
    parser.add_argument("--spacing", type=float, default=0.36, help="of robots abreast [m]")
    parser.add_argument("--speed", type=float, default=0.65, help="that robots command [m/s]")
    parser.add_argument("--num_envs", type=int, default=16)
    arguments = parser.parse_args()
    limit_threads()
    env = worlds(arguments)
    env.reset()
    put(env, lanes(arguments), arguments.object)
    moved, num_ended = pushed(env, lanes(arguments)[..., 1])
    emit(
        **vars(arguments),
        seconds=SECONDS,
        moved_m={str(q): float(torch.quantile(moved, q)) for q in (0.0, 0.25, 0.5, 1.0)},
        ended_early=num_ended,
    )
    return 0


def worlds(arguments: argparse.Namespace) -> MultiAgentEnv:
    """Return worlds whose goals are far away."""
    over = {
        "env": {
            "num_envs": arguments.num_envs,
            "num_agents": arguments.num_agents,
            "model": "physical",
        },
        "sim": {"name": "mujoco", "device": "cpu"},
        "task": {
            "object": arguments.object,
            "object_mass": f"{arguments.force:g} N",
            "goal_distance": [8.0, 8.0],
            "action_scale": [arguments.speed] * 3,
            "decision_period": 5,
            "episode_length_s": 60.0,
        },
    }
    cfg, _ = config.resolve({}, over)
    return make_env(cfg.env, cfg.sim, cfg.task, seed=1)


def lanes(arguments: argparse.Namespace) -> Tensor:
    """Return the robots' places (A, 2) [m] behind the object, on an arc behind a cylinder."""
    number = torch.arange(arguments.num_agents, dtype=torch.float64)
    across = (number - 0.5 * (arguments.num_agents - 1)) * arguments.spacing
    if arguments.object != "cylinder":
        behind = torch.full_like(across, -PLACES[arguments.object][0] - GAP)
        return torch.stack((behind, across), dim=-1)
    radius = OBJECTS["cylinder"].geoms[0].size[0] + GAP
    angle = across / radius
    return torch.stack((-radius * angle.cos(), radius * angle.sin()), dim=-1)


def put(env: MultiAgentEnv, places: Tensor, name: str) -> None:
    """Place robots and object, everything facing along x."""
    qpos = env.sim.data.qpos
    model = env.scene.model
    straight = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=qpos.dtype)
    size = (model.nq - 7) // env.num_agents
    for agent, place in enumerate(places):
        qpos[:, agent * size : agent * size + 2] = place
        qpos[:, agent * size + 3 : agent * size + 7] = straight
    yaw = PLACES.get(name, (0.0, 0.0))[1]
    qpos[:, -7:-5] = 0.0
    qpos[:, -4:] = quat_from_rpy(torch.tensor([0.0, 0.0, yaw])).to(qpos)


@torch.no_grad()
def pushed(env: MultiAgentEnv, lane: Tensor) -> tuple[Tensor, int]:
    """Return how far each object went along x (N,) [m], and how many worlds ended early."""
    is_over = torch.zeros(env.num_envs, dtype=torch.bool)
    start = env.sim.data.qpos[:, -7].clone()
    moved = torch.zeros_like(start)
    size = (env.scene.model.nq - 7) // env.num_agents
    for _ in range(round(SECONDS / STEP_DT / env.decision_period)):
        robots = env.sim.data.qpos[:, :-7].unflatten(1, (env.num_agents, size))
        yaw = yaw_of(rotation_matrix(robots[..., 3:7]))
        sideways = (-LANE * (robots[..., 1] - lane)).clamp(-0.5, 0.5)
        turning = (-HEADING * yaw).clamp(-1.0, 1.0)
        step = env.step(torch.stack((torch.ones_like(yaw), sideways, turning), dim=-1).float())
        is_over |= step.terminated.any(dim=1) | step.truncated
        moved = torch.where(is_over, moved, env.sim.data.qpos[:, -7] - start)
    return moved, int(is_over.sum())


if __name__ == "__main__":
    sys.exit(main())
