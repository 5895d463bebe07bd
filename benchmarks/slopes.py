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
from mqe.env.observer import Observer
from mqe.registry import make_env
from mqe.world.state import SceneState

BOUNDS = (0.0, 13.0, 42.0, 90.0, 180.0)  # [degrees] from uphill: force forbids, see least_force.py


class Angles(Observer):
    """Keeps each world's first angle between goal and uphill [degrees]."""

    angles: torch.Tensor | None = None

    def on_control_step(self, state: SceneState, live: torch.Tensor) -> None:
        """Read the first state."""
        if self.angles is None:
            cosine = (state.rows[-3:-1].T * state.goal_direction).sum(dim=1)
            self.angles = (cosine / state.rows[-3:-1].norm(dim=0)).acos().rad2deg()


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
    watcher = Angles()
    is_over = torch.zeros(env.num_envs, dtype=torch.bool)
    succeeded = torch.zeros(env.num_envs, dtype=torch.bool)
    with env.observed_by(watcher), torch.no_grad():
        obs = env.reset()[0]
        while not is_over.all():
            step = env.step(policy(obs))
            obs = step.obs
            succeeded |= step.terminated.reshape(env.num_envs, -1).all(dim=1) & ~is_over
            is_over |= step.done.reshape(env.num_envs, -1).all(dim=1)
    angles = watcher.angles
    assert angles is not None
    row = {"all": [int(succeeded.sum()), env.num_envs]}
    for low, high in zip(BOUNDS, BOUNDS[1:], strict=False):
        within = (angles >= low) & (angles < high)
        row[f"{low:g} to {high:g}"] = [int((succeeded & within).sum()), int(within.sum())]
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
