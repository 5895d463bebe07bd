"""Team success over the object's required push force, by the number of robots.

``python benchmarks/force_curve.py pretrained:any --num_agents 1 2 3`` plays boxes (beams for more
than three robots) with random mass and friction in each world. It writes a JSON line for each fifth
of the team's joint push force. Objects below four fifths also give a line for each tenth by mass
and each tenth by friction.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from measuring import emit
from torch import Tensor

from harl_mapush.config import RunCfg
from harl_mapush.evaluation.calculator import first_episodes
from harl_mapush.evaluation.policies import load_policy
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.config import assignment, merge
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env
from mqe.tasks.episode_report import wilson_interval
from mqe.world.randomization import model_fields
from mqe.world.scene import GRAVITY
from mqe.world.streams import Streams

ROBOT_FORCE = 50.0  # [N] of a Go1 with the gait pretrained:go1_push against a wall at 0.5 m/s
MASS_PER_ROBOT = 16.0  # [kg] of an object that slides at 51 N for each robot
MASS = (0.1, 1.3)  # range of the factor on it
FRICTION = (0.6, 1.4)  # range of the factor on the mean friction
STEP = 0.2  # of the force over that of all robots
WITHIN_REACH = 0.8  # of the same
ON_A_SIDE = 3  # robots that find room at a side of the box


def main() -> None:
    """Play every team size and write its lines."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--num_agents", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--num_episodes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    folder = checkpoint.resolve(arguments.checkpoint)
    for num_agents in arguments.num_agents:
        over = worlds_of(num_agents, arguments.num_episodes)
        for text in arguments.set:
            over = merge(over, assignment(text))
        cfg = evaluation_worlds.settings(folder, over)
        env = make_env(cfg.env, cfg.sim, cfg.task, arguments.seed)
        for line in lines(env, cfg, folder, arguments.seed):
            emit(policy=arguments.checkpoint, num_agents=num_agents, **line)
        env.close()


def worlds_of(num_agents: int, num_envs: int) -> dict[str, Any]:
    """Return settings for worlds with a team and an object at the team's size."""
    randomize = {"object_mass": list(MASS), "object_friction": list(FRICTION)}
    return {
        "env": {
            "num_envs": num_envs,
            "num_agents": num_agents,
            "model": "physical",
            "randomize": randomize,
        },
        "task": {
            "object": "cuboid" if num_agents <= ON_A_SIDE else "beam",
            "object_mass": MASS_PER_ROBOT * num_agents,
            "shapes": None,
            "spawn": "separated",
        },
    }


def lines(env: MultiAgentEnv, cfg: RunCfg, folder: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Play an episode in every world and yield each group's lines."""
    episodes = first_episodes(env, load_policy(folder, cfg, env))
    is_success = episodes["success"].cpu() > 0.5
    force = env.randomization.needed_force
    assert force is not None
    ratio = force.cpu().double() / (ROBOT_FORCE * env.num_agents)
    for k in range(int(ratio.max() / STEP) + 1):
        is_here = (ratio >= k * STEP) & (ratio < (k + 1) * STEP)
        if is_here.any():
            name = "force over that of all robots"
            yield group(name, k * STEP, (k + 1) * STEP, is_success[is_here])
    mass = masses(env, cfg, seed)
    friction = force.cpu() / (GRAVITY * mass)
    can = ratio <= WITHIN_REACH
    yield from tenths("mass", mass[can], is_success[can])
    yield from tenths("friction with the floor", friction[can], is_success[can])


def masses(env: MultiAgentEnv, cfg: RunCfg, seed: int) -> Tensor:
    """Return the worlds' object masses (N,) [kg], drawn again."""
    streams = Streams(seed, env.num_envs, torch.device("cpu"))
    drawn = model_fields(cfg.env.randomize, env.scene, {}, streams, env.num_envs)
    return drawn["body_mass"][:, env.scene.model.body("object").id]


def tenths(name: str, values: Tensor, is_success: Tensor) -> Iterator[dict[str, Any]]:
    """Yield the line for each tenth of the worlds, ordered by ``values`` (N,)."""
    for part in torch.tensor_split(values.argsort(), 10):
        yield group(name, float(values[part].min()), float(values[part].max()), is_success[part])


def group(name: str, low: float, high: float, is_success: Tensor) -> dict[str, Any]:
    """Return the line for the worlds with ``name`` between ``low`` and ``high``."""
    num_successes = int(is_success.sum())
    return {
        "by": name,
        "low": round(low, 3),
        "high": round(high, 3),
        "num_episodes": len(is_success),
        "num_successes": num_successes,
        "interval": [round(bound, 3) for bound in wilson_interval(num_successes, len(is_success))],
    }


if __name__ == "__main__":
    main()
