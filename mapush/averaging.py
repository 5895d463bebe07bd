"""Average a run's last checkpoints into one team: ``mapush average RUN OUT_DIR --last 4``.

While the learning rate does not fall, a policy keeps moving around a good one, and the mean of
several checkpoints is nearer to it than most of them (B. T. Polyak and A. B. Juditsky,
"Acceleration of Stochastic Approximation by Averaging", 1992).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from harl_mapush import config
from harl_mapush.runs import checkpoint, durable
from harl_mapush.runs.run_folder import checkpoints
from mqe.config import ConfigError
from mqe.manifest import MANIFEST, check_files, renew_manifest

PROGRAM = "mapush average"


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM, description="Average the actors of a run's last checkpoints into one team."
    )
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("target", metavar="OUT_DIR", help="the checkpoint folder to make")
    parser.add_argument(
        "--last", type=int, default=4, metavar="K", help="so many of its checkpoints (default: 4)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Average as the command line says; return the exit code."""
    return config.exit_code(lambda: _main(argv), PROGRAM)


def _main(argv: Sequence[str] | None) -> int:
    arguments = make_parser().parse(argv)
    run = Path(arguments.run)
    out = Path(arguments.target)
    if arguments.last < 2:
        raise ConfigError(f"--last={arguments.last}: an average takes at least 2 checkpoints")
    if os.path.lexists(out):
        raise ConfigError(f"{out} exists; name another folder, or remove it")
    found = [folder for _, folder in checkpoints(run)]
    if len(found) < arguments.last:
        if run.is_dir():
            has = f"has {len(found)} of the {arguments.last} checkpoints"
        else:
            has = "does not exist"
        raise ConfigError(
            f"{arguments.run!r} {has}; give a run folder that has them, or another --last"
        )
    chosen = found[: arguments.last][::-1]
    average(chosen, out)
    sys.stdout.write(f"{out}: the mean of {', '.join(folder.name for folder in chosen)}.\n")
    return 0


def average(folders: Sequence[Path], out: Path) -> None:
    """Write a checkpoint folder ``out`` whose actors are the mean of those of the checkpoints
    ``folders`` of one run.

    All other files are copies of the last checkpoint's, but for the training state, as no run can
    resume from a mean. Raises ConfigError for checkpoints that are damaged or whose actors do not
    have the same shapes.
    """
    last = folders[-1]
    actors = [checkpoint.read_actors(checkpoint.resolve(folder)) for folder in folders]
    out.parent.mkdir(parents=True, exist_ok=True)
    with durable.new_folder(out) as partial:
        kept = [
            path.name
            for path in last.iterdir()
            if path.is_file() and path.name != checkpoint.TRAINING_STATE
        ]
        check_files(last, [name for name in kept if name != MANIFEST])
        for name in kept:
            shutil.copy(last / name, partial / name)
        for name in actors[-1]:
            mean = _mean(
                [of.get(name, {}) for of in actors], f"{folders[0]} to {last.name}, {name}"
            )
            torch.save(mean, partial / f"{name}.pt")
        renew_manifest(partial, {"average_of": [folder.name for folder in folders]})


def _mean(weights: Sequence[dict[str, Tensor]], what: str) -> dict[str, Tensor]:
    """Return the mean of state dicts; tensors that are no floating-point numbers are the last
    one's.
    """
    last = weights[-1]
    if any(
        {k: v.shape for k, v in of.items()} != {k: v.shape for k, v in last.items()}
        for of in weights
    ):
        raise ConfigError(f"{what}: not all of one shape; average checkpoints of one run")
    return {
        key: torch.stack([of[key].double() for of in weights]).mean(dim=0).to(value.dtype)
        if value.is_floating_point()
        else value
        for key, value in last.items()
    }


if __name__ == "__main__":
    sys.exit(main())
