"""The mean of gaits, one trained from the other: precision of the one, balance of the other.

python benchmarks/mean_gait.py OUT GAIT GAIT ... [--shares 3 2] [--commands 1 1 0.95] [--ahead 0.02]

A negative share goes beyond the other gaits. ``--commands`` scales ahead, aside and turning,
``--ahead`` is added to the observed command ahead of a gait that walks too fast or too slow.
"""

import argparse
from pathlib import Path

import torch

from harl_mapush.runs.checkpoint import resolve
from harl_mapush.runs.exported import copy_description
from mapush.export.policy_folder import average
from mqe.manifest import renew_manifest
from mqe.tensor_files import read_file

COMMANDS = slice(6, 9)  # columns of the first layer: command_forward, command_left, ...
ACTOR = "actor_agent0.pt"


def main() -> None:
    """Write the mean gait's folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("gaits", type=resolve, nargs="+", help="runs or checkpoints")
    parser.add_argument("--shares", type=float, nargs="+", help="one a gait, of their sum")
    parser.add_argument("--commands", type=float, nargs=3, default=(1.0, 1.0, 1.0))
    parser.add_argument("--ahead", type=float, default=0.0)
    arguments = parser.parse_args()
    shares = arguments.shares or [1.0] * len(arguments.gaits)
    if len(shares) != len(arguments.gaits):
        parser.error(f"{len(shares)} shares for {len(arguments.gaits)} gaits")
    arguments.out.mkdir()
    average(arguments.gaits, arguments.out)

    actors = [read_file(gait / ACTOR) for gait in arguments.gaits]
    weights = {}
    for name in actors[0]:
        parts = [share * actor[name] for share, actor in zip(shares, actors, strict=True)]
        weights[name] = torch.stack(parts).sum(dim=0) / sum(shares)
    commands = weights["base.mlp.fc.0.weight"][:, COMMANDS]
    commands *= torch.tensor(arguments.commands)
    weights["base.mlp.fc.0.bias"] += arguments.ahead * commands[:, 0]
    torch.save(weights, arguments.out / ACTOR)
    copy_description(arguments.gaits[-1], arguments.out)
    renew_manifest(arguments.out)


if __name__ == "__main__":
    main()
