"""How hard a robot presses a wall, by its command.

``python benchmarks/pressed.py GAIT [--robot go1] [--speeds 0.65 1] [--foot_friction 0.55]``
"""

from __future__ import annotations

import argparse
import sys

import torch

from mapush.extensions.gait.examination import push_wall
from mapush.extensions.gait.gait_worlds import Walker
from mqe.controllers.gait import load_gait
from mqe.registry import SimCfg
from mqe.world.robots import ROBOTS


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("gait")
    parser.add_argument("--robot", default="go1")
    parser.add_argument("--speeds", type=float, nargs="+", default=[0.65, 1.0], help="[m/s]")
    parser.add_argument("--foot_friction", type=float, default=0.55)
    arguments = parser.parse_args()
    gait = load_gait(arguments.gait, torch.device("cpu"), ROBOTS.find(arguments.robot, "--robot"))
    sim = SimCfg(name="mujoco", device="cpu")
    walker = Walker(gait, sim, 5, arguments.robot, "physical", arguments.foot_friction)
    for speed in arguments.speeds:
        force = push_wall(walker, speed)["push_ahead_n"]
        sys.stdout.write(f"{speed:g} m/s: {force:.1f} N\n")


if __name__ == "__main__":
    main()
