"""The command ``mapush sweep SPACE.yaml``: begin a sweep, or continue one."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import Namespace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from harl_mapush import config
from harl_mapush.interruption import Signalled
from harl_mapush.process import say
from harl_mapush.runs import durable, run_folder
from mqe.config import ConfigError, dump_yaml, import_extra, parse_yaml, to_dict
from mqe.cores import num_cores

if TYPE_CHECKING:  # Optuna is an extra, so its modules are imported later
    import optuna

    from mapush.extensions.sweep.space import Space

PROGRAM = "mapush sweep"
BEST = "best.yaml"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NUM_BEST = 10  # trials that are printed
_KEYS = ("num_trials", "jobs")  # of a space, which flags replace


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="Trainings over a space of settings, and their ranking.",
        example="mapush sweep space.yaml --jobs 2",
    )
    parser.add_argument(
        "space",
        metavar="SPACE.yaml",
        help="a file with the settings that vary (docs/guides/sweep.md), or the folder of a sweep "
        "to continue",
    )
    parser.add_argument(
        "--num_trials", metavar="N", help="number of trials, in place of num_trials in SPACE.yaml"
    )
    parser.add_argument(
        "--jobs",
        metavar="J",
        help="number of simultaneous trials (default: one on each GPU, or on each core without "
        "a GPU)",
    )
    # --out of a training run has another meaning.
    parser.add_argument(
        "--out",
        metavar="DIR",
        dest="folder",
        help="the sweep's folder (default: results/sweeps/<name>-<date>)",
    )
    config.add_import(parser)
    group = parser.add_argument_group(
        "settings for every trial, in place of the key settings in SPACE.yaml"
    )
    config.add_flags(group, ())
    return parser


@config.command(make_parser)
def main(arguments: Namespace) -> int:
    """Run a sweep. Return the exit code."""
    import_extra("optuna", "sweep", "a sweep")
    from mapush.extensions.sweep.space import SETTINGS, SWEEP
    from mapush.extensions.sweep.study import open_study, trials
    from mapush.extensions.sweep.trial_training import train_all

    folder, space = _find(arguments)
    common = [word for name in arguments.imports for word in ("--import", name)]
    command = shlex.join([*PROGRAM.split(), *common, str(folder)])
    places = _places(space)
    if not places[0]:
        threads = max(1, num_cores() // len(places))
        if space.run.runner.torch_threads is None:
            common += ["--set", f"runner.torch_threads={threads}"]
        if space.run.sim.num_threads == 0:
            common += ["--set", f"sim.num_threads={threads}"]
    durable.make_folder(folder)
    with run_folder.locked(folder):
        durable.write_text(folder / SETTINGS, dump_yaml(space.base))
        durable.write_text(folder / SWEEP, dump_yaml(to_dict(space.cfg)))
        study = open_study(folder, space)
        say(f"Sweep folder {folder}, {len(places)} trials at once.")
        try:
            train_all(folder, space, trials(study, space), common, places)
        except Signalled:
            say(f"Interrupted; continue with: {command}")
            raise
        return _finish(folder, space, study, command)


def _find(arguments: Namespace) -> tuple[Path, Space]:
    """Return the sweep's folder and space, as read from the folder or from SPACE.yaml."""
    from mapush.extensions.sweep.space import SWEEP, read_space, reread_space

    given = Path(arguments.space)
    flags = {
        key: parse_yaml(getattr(arguments, key), f"--{key}")
        for key in _KEYS
        if getattr(arguments, key) is not None
    }
    if given.is_dir():
        if not (given / SWEEP).is_file():
            raise ConfigError(
                f"{given}: holds no sweep; name a SPACE.yaml, or the folder of a sweep"
            )
        if arguments.folder or arguments.suite or arguments.set:
            raise ConfigError(
                f"{given}: is the folder of a sweep, whose settings stay; leave --out, --suite and "
                "--set out"
            )
        return given, reread_space(given, flags)
    space = read_space(given, flags, config.flag_values(arguments))
    name = f"{given.stem}-{datetime.now():%Y-%m-%d-%H-%M-%S}"
    folder = Path(arguments.folder or Path("results", "sweeps", name))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"--out {folder}: exists; name another folder, or continue a sweep: {PROGRAM} {folder}"
        )
    return folder, space


def _finish(folder: Path, space: Space, study: optuna.Study, command: str) -> int:
    """Print the best trials, and write the settings of the first. Return 1 if no trial finished or
    some are still open.

    ``command`` continues the sweep.
    """
    from mapush.extensions.sweep.space import assignments, settings_of
    from mapush.extensions.sweep.study import num_running, ranking

    best = ranking(study)
    say(f"The best by {space.cfg.metric}, {len(best)} of {len(study.trials)} trials finished:")
    for trial in best[:_NUM_BEST]:
        words = " ".join(assignments(space.values(trial.params)))
        say(f"{trial.value:.3f}  trial {trial.number}: {words}")
    if best:
        text = dump_yaml(settings_of(space.base, space.values(best[0].params))[1])
        durable.write_text(folder / BEST, text)
        say(f"The best settings: {folder / BEST}.")
    num_open = num_running(study)
    if num_open:
        sys.stderr.write(f"{PROGRAM}: {num_open} trials have not ended; continue with: {command}\n")
    return 0 if best and not num_open else 1


def _places(space: Space) -> list[dict[str, str]]:
    """Return environment variables for each simultaneous trial: a GPU, or none."""
    num_gpus = torch.cuda.device_count()
    jobs = space.cfg.jobs
    if num_gpus == 0 or space.run.sim.device == "cpu":
        return [{}] * (jobs or num_cores())
    visible = os.environ.get(_VISIBLE)
    gpus = visible.split(",") if visible else [str(index) for index in range(num_gpus)]
    return [{_VISIBLE: gpus[k % len(gpus)]} for k in range(jobs or len(gpus))]
