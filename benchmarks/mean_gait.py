"""The mean of gaits, one trained from the other: precision of the one, balance of the other.

python benchmarks/mean_gait.py OUT GAIT GAIT ... [--turn 0.95]

A gait that is named twice of five times has a share of 0.4. ``--turn`` scales the command to turn.
"""

import argparse
from pathlib import Path

import torch

from harl_mapush.runs.checkpoint import resolve
from harl_mapush.runs.exported import copy_description
from mapush.export.policy_folder import average
from mqe.manifest import renew_manifest
from mqe.tensor_files import read_file

TURN = 8  # column of the first layer: command_turning_left


def main() -> None:
    """Write the mean gait's folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("gaits", type=resolve, nargs="+", help="runs or checkpoints")
    parser.add_argument("--turn", type=float, default=1.0)
    arguments = parser.parse_args()
    arguments.out.mkdir()
    average(arguments.gaits, arguments.out)
    actor = arguments.out / "actor_agent0.pt"
    weights = read_file(actor)
    weights["base.mlp.fc.0.weight"][:, TURN] *= arguments.turn
    torch.save(weights, actor)
    copy_description(arguments.gaits[-1], arguments.out)
    renew_manifest(arguments.out)


if __name__ == "__main__":
    main()
