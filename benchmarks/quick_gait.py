"""A quick examination: one robot a command, and a wall.

python benchmarks/quick_gait.py pretrained:go1_velocity anymal_c.yaml

It takes ten seconds of a core, and gaits of any robot. ``mapush test GAIT --suite gait`` is the
whole examination.
"""

import argparse
import json
import sys

import torch

import mapush  # noqa: F401  registers simulators and robots
from harl_mapush.runs.checkpoint import resolve
from mapush.extensions.gait import examination
from mapush.extensions.gait.gait_worlds import Walker
from mqe.controllers.gait import load_gait
from mqe.registry import SimCfg


def main() -> None:
    """Print the metrics of the command grid and the wall."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("gait", type=resolve, help="a run or a checkpoint")
    parser.add_argument("robot")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    examination.ROBOTS_A_CELL = 1
    gait = load_gait(str(arguments.gait), torch.device("cpu"))
    walker = Walker(gait, SimCfg("mujoco", "cpu", 1), 1, arguments.robot)
    with torch.no_grad():
        metrics = examination.track(walker) | examination.push_wall(walker)
    sys.stdout.write(json.dumps(metrics, indent=2) + "\n")


if __name__ == "__main__":
    main()
