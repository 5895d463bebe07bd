"""Average a run's last checkpoints into one team: ``mapush average RUN OUT_DIR --last 4``.

With a constant learning rate, the weights keep fluctuating around an optimum, and the mean of
several checkpoints is nearer to it than most of them (B. T. Polyak and A. B. Juditsky,
"Acceleration of Stochastic Approximation by Averaging", 1992).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harl_mapush import config
from harl_mapush.runs import checkpoint, durable, resume
from harl_mapush.runs.run_folder import checkpoints
from mqe.config import ConfigError
from mqe.manifest import MANIFEST, check_files, renew_manifest

PROGRAM = "mapush average"


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="The average of the actors of a run's last checkpoints, as one team.",
        example="mapush average results/run averaged --last 4",
    )
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("target", metavar="OUT_DIR", help="the checkpoint folder to write")
    parser.add_argument(
        "--last", type=int, default=4, metavar="K", help="number of checkpoints (default: 4)"
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
        raise ConfigError(f"--last={arguments.last}: must be at least 2")
    if os.path.lexists(out):
        raise ConfigError(f"{out} exists; name another folder, or remove it")
    found = [folder for _, folder in checkpoints(run)]
    if len(found) < arguments.last:
        problem = "does not exist"
        if run.is_dir():
            problem = f"has {len(found)} of the {arguments.last} checkpoints"
        raise ConfigError(
            f"{arguments.run!r} {problem}; name a run folder with more checkpoints, or lower --last"
        )
    chosen = found[: arguments.last][::-1]
    average(chosen, out)
    sys.stdout.write(f"{out}: the mean of {', '.join(folder.name for folder in chosen)}.\n")
    return 0


def average(folders: Sequence[Path], out: Path) -> None:
    """Write a checkpoint folder ``out`` with the mean of the actors of the checkpoints ``folders``.

    All other files are copied from the last checkpoint, except for the training state: no run can
    resume from a mean. Raises ConfigError for checkpoints that are damaged, of different runs,
    under another's name, or whose actors differ in their shapes.
    """
    last = folders[-1]
    _check_one_run(folders)
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
            weights = [of_checkpoint.get(name, {}) for of_checkpoint in actors]
            mean = _mean(weights, f"{folders[0]} to {last.name}, {name}")
            torch.save(mean, partial / f"{name}.pt")
        renew_manifest(partial, {"average_of": [folder.name for folder in folders]})


def _check_one_run(folders: Sequence[Path]) -> None:
    """Raise ConfigError if checkpoints are not those of one run, each under its own name."""
    last = folders[-1]
    out = "remove it, or average fewer checkpoints (--last)"
    newest = _settings(last)
    own_id = checkpoint.run_id(last)  # None for an older one
    for folder in folders:
        problem = checkpoint.misnamed(folder)
        if problem is not None:
            raise ConfigError(f"checkpoint {folder}: {problem}; {out}")
        other_id = checkpoint.run_id(folder)
        difference = resume.fixed_difference(newest, _settings(folder))
        if difference is not None:
            key, expected, found = difference
            raise ConfigError(
                f"checkpoint {folder}: it is of another run than {last.name} ({key}={found}, not "
                f"{expected}); {out}"
            )
        if None not in (own_id, other_id) and own_id != other_id:
            raise ConfigError(
                f"checkpoint {folder}: another run of the same settings wrote it than "
                f"{last.name}; {out}"
            )


def _settings(folder: Path) -> Any:
    """Return a checkpoint's settings; as they are written if they need a module of the user's."""
    values = checkpoint.read_config(folder)
    with suppress(ConfigError):
        values, _ = config.resolve(values, {})
    return values


def _mean(weights: Sequence[dict[str, Tensor]], label: str) -> dict[str, Tensor]:
    """Return the mean of state dicts; tensors other than floating-point are the last one's."""
    last = weights[-1]
    shapes = [{key: value.shape for key, value in state.items()} for state in weights]
    if any(each != shapes[-1] for each in shapes):
        raise ConfigError(f"{label}: shapes differ; average checkpoints of one run")
    mean = dict(last)
    for key, value in last.items():
        if value.is_floating_point():
            stacked = torch.stack([state[key].double() for state in weights])
            mean[key] = stacked.mean(dim=0).to(value.dtype)
    return mean


if __name__ == "__main__":
    sys.exit(main())
