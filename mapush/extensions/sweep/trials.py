"""The records of a sweep's trials in its folder, and their ranking.

``sweep.yaml`` is the space and ``settings.yaml`` the run that is varied. ``trials/0007/`` is a run
folder that also has ``trial.json``, which only the sweep writes, and ``output.log``. A sweep can
always be resumed from these files.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from harl_mapush.runs import durable, run_folder
from mqe.config import ConfigError, read_text

SWEEP = "sweep.yaml"
SETTINGS = "settings.yaml"
TRIALS = "trials"
OUTPUT = "output.log"
# States of a trial.
OPEN = "open"  # waiting, running or interrupted
FINISHED = "finished"
STOPPED = "stopped"
FAILED = "failed"
STATES = (OPEN, FINISHED, STOPPED, FAILED)
# Stages of a sweep.
SEARCH = "search"
CONFIRM = "confirm"
_RECORD = "trial.json"


@dataclass
class Trial:
    """One run of a sweep: its settings, its seed, its state and its curve."""

    number: int
    setting: int  # number of the setting; its trials differ in their seeds only
    values: dict[str, Any]  # by dotted name
    seed: int
    stage: str = SEARCH
    state: str = OPEN
    reason: str | None = None  # why it failed
    points: list[tuple[int, float]] = field(default_factory=list)  # env steps, metric

    @property
    def value(self) -> float:
        """The last value of the metric; NaN without any."""
        return self.points[-1][1] if self.points else math.nan

    @property
    def env_steps(self) -> int:
        """Env steps at the last value."""
        return self.points[-1][0] if self.points else 0


class Setting(NamedTuple):
    """One combination of values, with its trials: one for each seed."""

    number: int
    values: dict[str, Any]
    trials: tuple[Trial, ...]  # in the mean
    mean: float
    interval: tuple[float, float] | None  # 95 % interval of the mean; None for a single seed


class Ledger:
    """The records of a sweep's trials, stored in its folder."""

    def __init__(self, folder: Path) -> None:
        """Read the existing records; raise ConfigError for a damaged one."""
        self.folder = folder
        self.trials = [_read(path) for path in sorted((folder / TRIALS).glob(f"*/{_RECORD}"))]

    def add(
        self, setting: int | None, values: dict[str, Any], seed: int, stage: str = SEARCH
    ) -> Trial:
        """Record a new trial; ``setting`` None makes it the first of a new setting."""
        number = 1 + max((trial.number for trial in self.trials), default=0)
        if setting is None:
            setting = 1 + max((trial.setting for trial in self.trials), default=0)
        trial = Trial(number, setting, values, seed, stage)
        self.write(trial)
        self.trials.append(trial)
        return trial

    def write(self, trial: Trial) -> None:
        """Write a trial's record atomically."""
        folder = self.run_folder(trial)
        durable.make_folder(folder)
        durable.write_text(folder / _RECORD, json.dumps(asdict(trial), indent=1) + "\n")

    def run_folder(self, trial: Trial) -> Path:
        """Return the run folder of a trial."""
        return self.folder / TRIALS / f"{trial.number:04d}"

    def open_folders(self) -> list[Path]:
        """Return the run folders of all trials that have not ended."""
        return [self.run_folder(trial) for trial in self.trials if trial.state == OPEN]

    def open_trials(self, stage: str) -> list[Trial]:
        """Return the trials of a stage that have not ended."""
        return [trial for trial in self.trials if trial.state == OPEN and trial.stage == stage]


def best_first(trials: Iterable[Trial], mode: str) -> list[Trial]:
    """Return the finished trials that have a value, the best first."""
    known = [trial for trial in trials if trial.state == FINISHED and not math.isnan(trial.value)]
    return sorted(known, key=lambda trial: trial.value, reverse=mode == "max")


def contenders(trials: Iterable[Trial], mode: str) -> list[Trial]:
    """Return the trials of the search with a value, finished or stopped, the best first.

    A trial that was stopped early counts with its last value, so that one which was ahead of
    finished ones when it was stopped is before them; of equal ones, the longest is first.
    """
    sign = -1.0 if mode == "max" else 1.0
    known = [
        trial
        for trial in trials
        if trial.stage == SEARCH
        and trial.state in (FINISHED, STOPPED)
        and not math.isnan(trial.value)
    ]
    return sorted(known, key=lambda trial: (sign * trial.value, -trial.env_steps))


def order_of_merit(trials: Iterable[Trial], mode: str) -> list[Trial]:
    """Return the trials of the search that finished or were stopped, the best first.

    Stopped trials come after all that finished, in the order of their env steps, the most first.
    """
    sign = -1.0 if mode == "max" else 1.0
    known = [
        trial
        for trial in trials
        if trial.stage == SEARCH and trial.state in (FINISHED, STOPPED) and trial.points
    ]

    def place(trial: Trial) -> tuple[bool, int, float]:
        is_stopped = trial.state == STOPPED
        return is_stopped, -trial.env_steps if is_stopped else 0, sign * trial.value

    return sorted(known, key=place)


def rank_settings(trials: Sequence[Trial], mode: str) -> list[Setting]:
    """Return the settings with a finished trial, the best first.

    Settings with an interval come before others. If a setting was trained again with other seeds,
    only these count: its first result is biased, because the search chose it for that result.
    """
    by_setting: dict[int, list[Trial]] = {}
    for trial in best_first(trials, mode):
        by_setting.setdefault(trial.setting, []).append(trial)
    ranked = []
    for number, several in by_setting.items():
        confirming = [trial for trial in several if trial.stage == CONFIRM]
        counted = sorted(confirming or several, key=lambda trial: trial.number)
        values = [trial.value for trial in counted]
        ranked.append(
            Setting(number, counted[0].values, tuple(counted), fmean(values), mean_interval(values))
        )
    sign = -1.0 if mode == "max" else 1.0
    return sorted(ranked, key=lambda setting: (setting.interval is None, sign * setting.mean))


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean by Student's t, None for fewer than two values."""
    if len(values) < 2:
        return None
    half = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def t_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t, by bisection of its distribution's closed form."""
    low = 0.0
    high = math.pi / 2.0
    for _ in range(60):
        angle = (low + high) / 2.0
        if _t_probability(angle, degrees) < 0.95:
            low = angle
        else:
            high = angle
    return math.tan(low) * math.sqrt(degrees)


def _t_probability(angle: float, degrees: int) -> float:
    """Return P(|t| < sqrt(degrees) tan(angle)) for Student's t (Abramowitz and Stegun,
    26.7.3 and 26.7.4).
    """
    is_odd = degrees % 2 == 1
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for k in range(2 if is_odd else 1, degrees, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    total *= math.sin(angle)
    return (angle + total) * 2.0 / math.pi if is_odd else total


def wait_until_saved(folders: Iterable[Path], limit_s: float) -> None:
    """Wait until no process trains in these run folders, for at most ``limit_s`` in all."""
    deadline = time.monotonic() + limit_s
    for folder in folders:
        while folder.is_dir() and time.monotonic() < deadline:
            try:
                with run_folder.locked(folder):
                    break
            except ConfigError:
                time.sleep(0.2)


def _read(path: Path) -> Trial:
    try:
        values = json.loads(read_text(path))
        trial = Trial(
            **values | {"points": [(int(steps), float(value)) for steps, value in values["points"]]}
        )
        if trial.state not in STATES or not isinstance(trial.values, dict):
            raise ValueError(trial.state)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{path}: cannot be read as a trial's record ({type(error).__name__}); remove "
            f"{path.parent} to continue the sweep without that trial"
        ) from None
    return trial
