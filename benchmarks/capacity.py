"""Measure how much of the contact buffers is ever used, so that what is derived for a team has
known head-room.

``python benchmarks/capacity.py [--num_envs 4096] [--num_agents 1 2 3 4] [--objects cuboid tblock
cylinder] [--num_steps 500] [--checkpoint PATH] [--set ...]`` prints one JSON line for every team
and object: of random commands that are held for half a second (with resets), of the trained team of
``--checkpoint`` where team and object are its own, and of robots dropped in a heap onto the object,
under random joint targets and without resets: contacts a world on average at the worst moment,
constraint rows of the worst world, and both as shares of what is derived. Buffers are twice as
large meanwhile, so that nothing is cut off.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from measuring import add_settings, emit, lines_of_simulators, name_of, settings
from torch import Tensor

from harl_mapush import config
from harl_mapush.runs import checkpoint
from harl_mapush.runs.policy import load_team
from mapush.extensions.harl import harl_format  # noqa: F401, registers
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env
from mqe.sim.mujoco_warp import Capacity, MujocoWarpSimulator, capacity
from mqe.world.objects import OBJECTS
from mqe.world.robots import NUM_JOINTS
from mqe.world.scene import DECIMATION
from mqe.world.state import ROBOT_QPOS

HELD_STEPS = 25


def main() -> int:
    """Measure every team with every object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_settings(parser, "h100")
    parser.add_argument("--num_envs", type=int, default=4096)
    parser.add_argument("--num_agents", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--objects", nargs="+", default=sorted(OBJECTS))
    parser.add_argument("--num_steps", type=int, default=500, help="control steps")
    parser.add_argument(
        "--checkpoint", help="a trained team, measured where team and object are its own"
    )
    arguments = parser.parse_args()
    with lines_of_simulators():
        for num_agents in arguments.num_agents:
            for name in arguments.objects:
                measure(arguments, num_agents, name)
    return 0


def measure(arguments: argparse.Namespace, num_agents: int, name: str) -> None:
    """Print the line of one team and object."""
    env_values = {"num_envs": arguments.num_envs, "num_agents": num_agents}
    cfg = settings(
        arguments, env=env_values, task={"object": name, "decision_period": 1}, sim={"name": "warp"}
    )
    env = make_env(cfg.env, cfg.sim, cfg.task, 1)
    sim = env.sim
    assert isinstance(sim, MujocoWarpSimulator)
    derived = capacity(sim.model)
    sim._make_data(Capacity(2 * derived.contacts, 2 * derived.rows))
    draw = torch.Generator(env.device).manual_seed(0)
    shape = (env.num_envs, num_agents, env.spec.action_size)

    def at_random(_: Tensor) -> Tensor:
        return 2.0 * torch.rand(shape, generator=draw, device=env.device) - 1.0

    needs = {"random": walk(env, arguments.num_steps, HELD_STEPS, at_random)}
    if arguments.checkpoint is not None:
        folder = checkpoint.resolve(arguments.checkpoint)
        own, _ = config.resolve(checkpoint.read_config(folder), {})
        if (own.env.num_agents, own.task.object) == (num_agents, name):
            team = load_team(own, folder, env)
            needs["trained"] = walk(env, arguments.num_steps, own.task.decision_period, team)
    needs["heap"] = pile_up(env, arguments.num_steps, draw)
    emit(
        part="capacity",
        device=name_of(env.device),
        num_envs=env.num_envs,
        num_agents=num_agents,
        object=name,
        derived=derived._asdict(),
        **{kind: _of(used, derived) for kind, used in needs.items()},
    )
    env.close()


@torch.no_grad()
def walk(
    env: MultiAgentEnv, num_steps: int, held_steps: int, decide: Callable[[Tensor], Tensor]
) -> Capacity:
    """Use what ``decide`` makes of observations, every so often; give the most that was needed."""
    obs, _ = env.reset()
    for _ in range(math.ceil(num_steps / held_steps)):
        actions = decide(obs)
        for _ in range(held_steps):
            obs = env.step(actions).obs
    return _take(env.sim)


def pile_up(env: MultiAgentEnv, num_steps: int, draw: torch.Generator) -> Capacity:
    """Drop all robots of a world onto one spot of the object and let them struggle; give the most
    that was needed.
    """
    sim = env.sim
    n = env.num_envs
    agents = env.num_agents
    device = env.device
    everywhere = torch.ones(n, dtype=torch.bool, device=device)
    qpos = sim.data.qpos.clone()
    robots = qpos[:, : env.scene.robot_qpos].view(n, agents, ROBOT_QPOS)
    spread = torch.rand((n, agents, 3), generator=draw, device=device)
    robots[..., :2] = 0.6 * (spread[..., :2] - 0.5)
    robots[..., 2] = 0.9 + 0.35 * torch.arange(agents, device=device) + 0.1 * spread[..., 2]
    quat = torch.randn((n, agents, 4), generator=draw, device=device)
    robots[..., 3:7] = quat / quat.norm(dim=-1, keepdim=True)
    stance = torch.tensor(env.scene.robots[0].joint_pos, device=device)
    robots[..., 7:] = stance
    qpos[:, env.scene.robot_qpos : env.scene.robot_qpos + 2] = 0.0
    sim.write(everywhere, qpos, torch.zeros_like(sim.data.qvel), sim.data.mocap_pos.clone())
    targets = stance
    for t in range(num_steps):
        if t % HELD_STEPS == 0:
            targets = stance + 0.5 * torch.randn(
                (n, agents, NUM_JOINTS), generator=draw, device=device
            )
        sim.data.ctrl.copy_(targets.flatten(1))
        sim.step(DECIMATION)
    return _take(sim)


def _take(sim: Any) -> Capacity:
    used = sim.usage()
    sim.check_capacity()
    assert sim.grow_buffers() is None
    return used


def _of(used: Capacity, derived: Capacity) -> dict[str, float]:
    return {
        "contacts": used.contacts,
        "rows": used.rows,
        "share_of_contacts": used.contacts / derived.contacts,
        "share_of_rows": used.rows / derived.rows,
    }


if __name__ == "__main__":
    sys.exit(main())
