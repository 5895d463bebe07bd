"""The command ``mapush sweep SPACE.yaml``: begin a sweep, or continue one."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from harl_mapush import config
from harl_mapush.interruption import Signalled
from harl_mapush.process import say
from harl_mapush.runs import durable, run_folder
from mapush.extensions.sweep.file_names import SETTINGS
from mapush.report.page_tables import markdown_table
from mqe.config import ConfigError, dump_yaml, install, parse_yaml, to_dict
from mqe.cores import num_cores

if TYPE_CHECKING:  # Optuna is an extra, so its modules are imported later
    from mapush.extensions.sweep.space import Space
    from mapush.extensions.sweep.study import Sweep

PROGRAM = "mapush sweep"
SWEEP = "sweep.yaml"
SUMMARY = "summary.md"
BEST = "best.yaml"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NUM_BEST = 10  # settings in the summary
_FLAGS = ("--num_envs", "--num_env_steps", "--seed", "--device", "--sim")  # of every trial


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
        "--num_trials",
        metavar="N",
        help="number of trials, each with one combination of settings (default: num_trials in "
        "SPACE.yaml)",
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
    config.add_flags(group, _FLAGS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sweep by the arguments ``argv``. Return the exit code."""
    return config.exit_code(lambda: _sweep(make_parser().parse(argv)), PROGRAM)


def _sweep(arguments: Any) -> int:
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(f"optuna is missing; {install('sweep')}")
    from mapush.extensions.sweep.study import Sweep
    from mapush.extensions.sweep.trial_training import train_all

    jobs = _number("--jobs", arguments.jobs)
    folder, space = _find(arguments)
    places = _places(space, jobs)
    durable.make_folder(folder)
    with run_folder.locked(folder):
        durable.write_text(folder / SETTINGS, dump_yaml(space.base))
        durable.write_text(folder / SWEEP, dump_yaml(to_dict(space.cfg)))
        sweep = Sweep(folder, space)
        done = f" ({len(sweep.study.trials)} are in its journal)" if sweep.study.trials else ""
        say(f"Sweep folder {folder}: {space.num_trials} trials{done}, {len(places)} at once.")
        common = _common_words(space, places, arguments.imports)
        command = _command(folder, arguments.imports)
        try:
            train_all(sweep, sweep.trials(), common, places)
            sweep.repeat_best()
            train_all(sweep, sweep.trials(), common, places)
        except (KeyboardInterrupt, Signalled):
            say(f"Interrupted; continue with: {command}")
            raise
        return _finish(sweep, command)


def _command(folder: Path, imports: Sequence[str]) -> str:
    """Return the command line for continuing a sweep."""
    words = [word for name in imports for word in ("--import", name)]
    return shlex.join([*PROGRAM.split(), *words, str(folder)])


def _find(arguments: Any) -> tuple[Path, Space]:
    """Return the sweep's folder and space, as read from the folder or from SPACE.yaml."""
    from mapush.extensions.sweep.space import read_space, reread_space

    given = Path(arguments.space)
    num_trials = _number("--num_trials", arguments.num_trials)
    if given.is_dir():
        if arguments.folder is not None:
            raise ConfigError(
                f"--out: {given} is the folder of a sweep, which continues there; leave --out out"
            )
        if not (given / SWEEP).is_file():
            raise ConfigError(
                f"{given}: holds no sweep; name a SPACE.yaml, or the folder of a sweep"
            )
        for flag in (*_FLAGS, "--suite", "--set"):
            if getattr(arguments, flag.strip("-")):
                raise ConfigError(
                    f"{flag}: {given} is the folder of a sweep, whose settings stay; leave it out, "
                    "or name a SPACE.yaml and another folder"
                )
        return given, reread_space(given / SWEEP, given / SETTINGS, num_trials)
    space = read_space(given, num_trials, config.flag_values(arguments))
    if arguments.folder:
        folder = Path(arguments.folder)
    else:
        folder = Path("results", "sweeps", f"{given.stem}-{_now()}")

    if (folder / SWEEP).is_file():
        old = reread_space(folder / SWEEP, folder / SETTINGS)
        is_same = (
            replace(old.cfg, num_trials=None) == replace(space.cfg, num_trials=None)
            and old.base == space.base
        )
        if not is_same:
            raise ConfigError(
                f"--out {folder}: holds a sweep over another space; name another folder, or "
                f"continue that sweep: {PROGRAM} {folder}"
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--out {folder}: exists and holds no sweep; name another folder")
    return folder, space


def _finish(sweep: Sweep, command: str) -> int:
    """Write and print the summary. Return 1 if no trial finished or some are still open.

    ``command`` continues the sweep.
    """
    from optuna.trial import TrialState

    from mapush.extensions.sweep.space import settings_of

    ranking = sweep.ranking()
    page = summary(sweep)
    durable.write_text(sweep.folder / SUMMARY, page)
    say(page)
    if ranking:
        best = {**ranking[0].values, "runner.seed": ranking[0].seeds[0]}
        text = dump_yaml(settings_of(sweep.space.base, best)[1])
        durable.write_text(sweep.folder / BEST, text)
        say(f"The best settings: {sweep.folder / BEST}.")
    num_open = sweep.count(TrialState.RUNNING)
    if num_open:
        sys.stderr.write(f"{PROGRAM}: {num_open} trials have not ended; continue with: {command}\n")
    return 0 if ranking and not num_open else 1


def summary(sweep: Sweep) -> str:
    """Return a sweep's results as Markdown."""
    from optuna.trial import TrialState

    from mapush.extensions.sweep.study import REASON

    space = sweep.space
    keys = list(space.distributions)
    counts = (
        f"{sweep.count(TrialState.COMPLETE)} finished, {sweep.count(TrialState.PRUNED)} stopped "
        f"early, {sweep.count(TrialState.FAIL)} failed, {sweep.count(TrialState.RUNNING)} open"
    )
    parts = [
        "# Sweep",
        f"{len(sweep.study.trials)} trials ({counts}), search {space.cfg.search}; compared by "
        f"`{space.cfg.metric}` ({space.cfg.mode}) after "
        f"{space.run.runner.num_env_steps:,} env steps.",
    ]
    rows: list[list[object]] = []
    for setting in sweep.ranking()[:_NUM_BEST]:
        values = [_short(setting.values[key]) for key in keys]
        spread = f"{min(setting.results):.3f} to {max(setting.results):.3f}"
        seeds = ", ".join(map(str, setting.seeds))
        rows.append([setting.trial, *values, f"{setting.mean:.3f}", spread, seeds])
    head = ["trial", *keys, "mean", "range", "seeds"]
    parts.append(markdown_table(head, rows) if rows else "No trial has finished.")
    if any(len(setting.seeds) < 2 for setting in sweep.ranking()):
        parts.append(
            "A result of one seed is the best of many: expect lower values with other seeds. "
            "`seeds: [...]` trains the best settings again."
        )
    shares = sweep.importance()
    if shares:
        text = ", ".join(f"`{key}` {share:.2f}" for key, share in shares.items())
        parts.append(f"Importance (PED-ANOVA; a hint below 40 trials): {text}.")
    failed = sweep.study.get_trials(states=(TrialState.FAIL,))
    if failed:
        lines = [f"- Trial {trial.number}: {trial.user_attrs.get(REASON)}" for trial in failed]
        parts.append("\n".join(["Failed:", "", *lines]))
    return "\n\n".join(parts) + "\n"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _common_words(
    space: Space, places: Sequence[Mapping[str, str]], imports: Sequence[str]
) -> list[str]:
    """Return arguments for every trial: imports, and an equal share of the threads."""
    common = [word for name in imports for word in ("--import", name)]
    if not places[0]:
        threads = max(1, num_cores() // len(places))
        if space.run.runner.torch_threads is None:
            common += ["--set", f"runner.torch_threads={threads}"]
        if space.run.sim.num_threads == 0:
            common += ["--set", f"sim.num_threads={threads}"]
    return common


def _places(space: Space, jobs: int | None) -> list[dict[str, str]]:
    """Return environment variables for each simultaneous trial: a GPU, or none."""
    num_gpus = torch.cuda.device_count()
    if num_gpus and space.run.sim.device != "cpu":
        visible = os.environ.get(_VISIBLE)
        gpus = visible.split(",") if visible else [str(index) for index in range(num_gpus)]
        return [{_VISIBLE: gpus[k % len(gpus)]} for k in range(jobs or len(gpus))]
    if space.run.sim.device.startswith("cuda"):
        raise ConfigError(
            f"sim.device={space.run.sim.device}: no GPU is visible here; use --device cpu"
        )
    jobs = jobs or num_cores()
    if jobs > num_cores():
        raise ConfigError(
            f"--jobs: must be at most {num_cores()}, the cores of this machine, not {jobs}"
        )
    return [{}] * jobs


def _number(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    value = parse_yaml(text, flag)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 or value < 1:
        raise ConfigError(f"{flag}: must be a whole number above 0, not {text!r}")
    return int(value)


def _now() -> str:
    return f"{datetime.now():%Y-%m-%d-%H-%M-%S}"


if __name__ == "__main__":
    sys.exit(main())
