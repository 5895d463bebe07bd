"""Success on a slope by the goal's direction: uphill, aside, downhill.

python benchmarks/slopes.py TEAM [--slope 0.0873] [--mass 1.0] [--time 30] [--gait GAIT]

Two robots, the box of team2, worlds of the suite rough, one episode each. Prints the successes and
episodes of four ranges of the angle between the goal and uphill.
"""

import argparse
import json
import sys

import torch

import mapush  # noqa: F401  registers simulators and robots
from harl_mapush.config import load_suite
from harl_mapush.evaluation.policies import load_policy
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.config import merge
from mqe.registry import make_env
from mqe.world.geometry import dot

BOUNDS = (0.0, 13.0, 42.0, 90.0, 180.0)  # [degrees] from uphill: force forbids, see least_force.py


def main() -> None:
    """Play the episodes and print a JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("team")
    parser.add_argument("--slope", type=float, default=0.0873)
    parser.add_argument("--mass", type=float, default=1.0)
    parser.add_argument("--time", type=float, default=30.0)
    parser.add_argument("--gait")
    parser.add_argument("--num_envs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=2000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = checkpoint.resolve(arguments.team)
    harder = {"slope": arguments.slope, "object_mass": arguments.mass}
    over = merge(
        load_suite("rough").worlds,
        {
            "env": {"randomize": harder, "num_envs": arguments.num_envs},
            "sim": {"device": "cpu", "name": "mujoco", "num_threads": 1},
            "task": {"object": "cuboid", "episode_length_s": arguments.time},
            "runner": {"seed": arguments.seed},
        },
    )
    if arguments.gait:
        over["task"]["gait"] = arguments.gait
    cfg = evaluation_worlds.settings(folder, over, num_envs=arguments.num_envs)
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    policy = load_policy(folder, cfg, env)
    is_over = torch.zeros(env.num_envs, dtype=torch.bool)
    succeeded = torch.zeros(env.num_envs, dtype=torch.bool)
    with torch.no_grad():
        obs = env.reset()[0]
        assert env.scene.against_gravity is not None
        uphill = torch.nn.functional.normalize(env.scene.against_gravity[:, :2])
        angles = dot(uphill, env.state.goal_direction).acos().rad2deg()
        while not is_over.all():
            step = env.step(policy(obs))
            obs = step.obs
            ended = step.done & ~is_over
            if ended.any():
                succeeded |= ended & (env.episode_metrics["success"] > 0.5)
            is_over |= ended
    row = {"all": [int(succeeded.sum()), env.num_envs]}
    for low, high in zip(BOUNDS, BOUNDS[1:], strict=False):
        within = (angles >= low) & (angles < high)
        row[f"{low:g} to {high:g}"] = [int((succeeded & within).sum()), int(within.sum())]
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
