"""The command ``mapush sweep SPACE.yaml``: train over a space of settings, or continue a sweep."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from harl_mapush import config
from harl_mapush.interruption import Signalled
from harl_mapush.runs import durable, run_folder
from mapush.extensions.sweep.child import GRACE_S
from mapush.extensions.sweep.places import Places, make_places
from mapush.extensions.sweep.space import Space, read_space, reread_space
from mapush.extensions.sweep.trials import (
    CONFIRM,
    FAILED,
    FINISHED,
    OPEN,
    SEARCH,
    SETTINGS,
    STOPPED,
    SWEEP,
    Ledger,
    Trial,
    best_first,
    contenders,
    rank_settings,
    wait_until_saved,
)
from mqe.config import ConfigError, dump_yaml, parse_yaml, to_dict
from mqe.cores import num_cores

PROGRAM = "mapush sweep"
_PARTS = ("optuna", "matplotlib")
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
        help="number of settings that the search tries (default: SPACE.yaml's)",
    )
    parser.add_argument(
        "--jobs", metavar="J", help="trials at once on this machine's cores (default: one per core)"
    )
    parser.add_argument(
        "--gpus_per_trial",
        metavar="SHARE",
        help="share of a GPU for each trial, 0.25 for four on each GPU (default: 1 if there is a "
        "GPU)",
    )
    # --out of a training run has another meaning.
    parser.add_argument(
        "--out",
        metavar="DIR",
        dest="folder",
        help="the sweep's folder (default: results/sweeps/<name>-<date>)",
    )
    config.add_import(parser)
    group = parser.add_argument_group("settings of every trial, in place of those of SPACE.yaml")
    config.add_flags(group, _FLAGS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sweep as the command line says; return the exit code."""
    return config.exit_code(lambda: _sweep(make_parser().parse(argv)), PROGRAM)


def _sweep(arguments: Any) -> int:
    jobs = _number("--jobs", arguments.jobs)
    share = _share(arguments.gpus_per_trial)
    if jobs and share:
        raise ConfigError(
            "--jobs, --gpus_per_trial: one is for processor cores, the other for GPUs; leave one "
            "out"
        )
    folder, space = _find(arguments)
    jobs, share, words = _places(space, jobs, share)
    engine = _import_engine()
    durable.make_folder(folder)
    with run_folder.locked(folder):
        durable.write_text(folder / SETTINGS, dump_yaml(space.base))
        durable.write_text(folder / SWEEP, dump_yaml(to_dict(space.cfg)))
        ledger = Ledger(folder)
        begun = f" ({len(ledger.trials)} trials are known)" if ledger.trials else ""
        _say(f"Sweep folder {folder}{begun}: {space.budget()}; {words}.")
        common = _common_words(space, jobs, share, arguments.imports)
        places = make_places(jobs, share)
        try:
            _run(engine, space, ledger, places, common)
        except (KeyboardInterrupt, Signalled):
            wait_until_saved(ledger.open_folders(), GRACE_S)
            _say(f"Interrupted; continue with: {_command(folder, arguments.imports)}")
            raise
        finally:
            places.close()
        return _finish(engine, space, ledger, _command(folder, arguments.imports))


def _command(folder: Path, imports: Sequence[str]) -> str:
    """Return the command line that continues a sweep."""
    words = [word for name in imports for word in ("--import", name)]
    return shlex.join([*PROGRAM.split(), *words, str(folder)])


def _find(arguments: Any) -> tuple[Path, Space]:
    """Return the sweep's folder and space, as read from the folder or from SPACE.yaml."""
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


def _run(engine: Any, space: Space, ledger: Ledger, places: Places, common: Sequence[str]) -> None:
    """Run the search or the grid, then the best settings with other seeds."""
    progress = _Progress(space, ledger)

    # First stage: the search, or the grid.
    num_new = 0
    if space.cfg.search == "grid":
        known = {(repr(trial.values), trial.seed) for trial in ledger.trials}
        for setting, values in enumerate(space.grid(), 1):
            for seed in space.seeds:
                if (repr(values), seed) not in known:
                    ledger.add(setting, values, seed)
    else:
        num_new = max(0, space.num_settings - sum(trial.stage == SEARCH for trial in ledger.trials))
    waiting = ledger.open_trials(SEARCH)
    if waiting or num_new:
        search = engine.Search(space, ledger)
        stage = engine.Stage(space, ledger, waiting, search, num_new, common, progress.tell)
        engine.run_stage(stage, places)
    if space.cfg.search == "grid" or ledger.open_trials(SEARCH):
        return

    # Second stage: the best settings with other seeds.
    for best in contenders(ledger.trials, space.cfg.mode)[: space.cfg.confirm]:
        known = {trial.seed for trial in ledger.trials if trial.setting == best.setting}
        for seed in space.cfg.seeds:
            if seed not in known:
                ledger.add(best.setting, best.values, seed, CONFIRM)
    waiting = ledger.open_trials(CONFIRM)
    if waiting:
        stage = engine.Stage(space, ledger, waiting, None, 0, common, progress.tell)
        engine.run_stage(stage, places)


def _finish(engine: Any, space: Space, ledger: Ledger, command: str) -> int:
    """Write and print the summary; return 1 if no trial finished or some are still open.

    ``command`` continues the sweep.
    """
    summary = importlib.import_module("mapush.extensions.sweep.summary")
    ranked = rank_settings(ledger.trials, space.cfg.mode)
    shares = engine.importance(space, ledger.trials)
    files = summary.write_summary(space, ledger, ranked, shares)
    _say(summary.page(space, ledger.trials, ranked, shares))
    _say(f"Written: {', '.join(str(path) for path in files)}.")
    num_open = sum(trial.state == OPEN for trial in ledger.trials)
    if num_open:
        sys.stderr.write(f"{PROGRAM}: {num_open} trials have not ended; continue with: {command}\n")
    return 0 if ranked and not num_open else 1


def _common_words(space: Space, jobs: int, share: float, imports: Sequence[str]) -> list[str]:
    """Return the arguments of every trial's command line: imports, and its share of the threads."""
    common = [word for name in imports for word in ("--import", name)]
    if not share:
        threads = max(1, num_cores() // jobs)
        for key, given in (("runner.torch_threads", None), ("sim.num_threads", 0)):
            section, _, name = key.partition(".")
            if getattr(getattr(space.run, section), name) == given:
                common += ["--set", f"{key}={threads}"]
    return common


class _Progress:
    """Prints a line for every trial that ends."""

    def __init__(self, space: Space, ledger: Ledger) -> None:
        self._space = space
        self._ledger = ledger

    def tell(self, trial: Trial) -> None:
        """Print a trial's outcome and the progress of the sweep."""
        value = f"{self._space.cfg.metric} {trial.value:.3f} at {trial.env_steps:,} env steps"
        outcome = {
            FINISHED: f"finished, {value}",
            STOPPED: f"stopped early, {value}",
            FAILED: f"failed ({trial.reason})",
            OPEN: "interrupted; it resumes when the sweep is started again",
        }[trial.state]

        trials = self._ledger.trials
        progress = f"{sum(each.state != OPEN for each in trials)} over"
        best = best_first([each for each in trials if each.stage == SEARCH], self._space.cfg.mode)
        if best:
            progress += f"; best so far {best[0].value:.3f}, trial {best[0].number}"
        _say(f"Trial {trial.number}: {outcome} ({progress}).")


def _places(space: Space, jobs: int | None, share: float | None) -> tuple[int, float, str]:
    """Return the number of trials at once, the GPU share of each (0: none), and a text on them."""
    num_gpus = torch.cuda.device_count()
    is_local = "RAY_ADDRESS" not in os.environ
    if share is None and jobs is None and num_gpus and space.run.sim.device != "cpu":
        share = 1.0
    if share:
        if is_local and not num_gpus:
            raise ConfigError("--gpus_per_trial: no GPU is visible here; use --jobs J")
        return 0, share, f"{share:g} of a GPU per trial"
    jobs = jobs or num_cores()
    if is_local and jobs > num_cores():
        raise ConfigError(
            f"--jobs: must be at most {num_cores()}, the cores of this machine, not {jobs}"
        )
    if space.run.sim.device.startswith("cuda"):
        raise ConfigError(
            f"--jobs: trials on cores cannot use sim.device {space.run.sim.device}; use "
            "--gpus_per_trial"
        )
    return jobs, 0.0, f"{jobs} at once"


def _import_engine() -> Any:
    """Import the module of the search; raise ConfigError if a package is missing."""
    missing = [name for name in _PARTS if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} missing; pip install 'mapush[sweep]'")
    return importlib.import_module("mapush.extensions.sweep.engine")


def _number(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    value = parse_yaml(text, flag)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 or value < 1:
        raise ConfigError(f"{flag}: must be a whole number above 0, not {text!r}")
    return int(value)


def _share(text: str | None) -> float | None:
    if text is None:
        return None
    value = parse_yaml(text, "--gpus_per_trial")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ConfigError(
            "--gpus_per_trial: must be above 0 and at most 1, since a trial trains on one GPU, "
            f"not {text!r}"
        )
    return float(value)


def _now() -> str:
    return f"{datetime.now():%Y-%m-%d-%H-%M-%S}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
