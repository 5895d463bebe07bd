"""Logs of runs: settings, curves, and groups with a common curve."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harl_mapush.callbacks.curves import read_points
from harl_mapush.runs import provenance, run_folder
from mapush.extensions.report.bootstrap import Array, bootstrap_interval, interquartile_mean
from mqe.config import ConfigError, flatten

_OWN = (  # beginnings of settings without an effect on the policy, and of the seed
    "runner.seed",
    "runner.max_wall_time",
    "runner.checkpoint_interval",
    "runner.torch_threads",
    "sim.device",
    "logger.",
)
_MOST_WORDS = 3  # settings in the name of a curve
NUM_POINTS = 200  # of a band


@dataclass(frozen=True)
class Curve:
    """One tag's values over a run."""

    env_steps: Array
    seconds: Array  # since the run's first point
    values: Array


@dataclass(frozen=True)
class RunLog:
    """A run's settings by dotted name, its curves by tag, and its preset or run file."""

    folder: Path
    settings: dict[str, Any]
    curves: dict[str, Curve]
    preset: str | None = None

    @property
    def label(self) -> str:
        """The algorithm, and the preset if known."""
        words = [str(self.settings.get("algorithm.name", "unknown algorithm")), self.preset]
        return ", ".join(word for word in words if word is not None)

    def last(self, tag: str) -> float | None:
        """Return a curve's last value. None: the run has no such curve."""
        return float(self.curves[tag].values[-1]) if tag in self.curves else None


@dataclass(frozen=True)
class Group:
    """Runs for one curve, which differ in their seeds only."""

    name: str
    runs: tuple[RunLog, ...]

    @property
    def label(self) -> str:
        """Name, with the number of runs if there are several."""
        num_runs = len(self.runs)
        return f"{self.name} ({num_runs} runs)" if num_runs > 1 else self.name


class Band(NamedTuple):
    """The interquartile mean over a group's runs, with its 95 % confidence interval."""

    x: Array
    mean: Array
    low: Array
    high: Array


def read_run(folder: Path) -> RunLog:
    """Read a run's settings and curves. Raise ConfigError if ``folder`` has none."""
    if not (folder / run_folder.CONFIG).is_file():
        raise ConfigError(f"{folder} is no run: it lacks {run_folder.CONFIG}; name a run's folder")
    points = read_points(folder)
    if not points:
        raise ConfigError(f"{folder}: it has no curves yet; wait for the first iterations")
    begin = min(points_of_tag[0].wall_time for points_of_tag in points.values())
    curves = {tag: _curve(points_of_tag, begin) for tag, points_of_tag in points.items()}
    settings = flatten(run_folder.read_config(folder))
    return RunLog(folder, settings, curves, provenance.preset(folder))


def groups(logs: Sequence[RunLog]) -> list[Group]:
    """Group runs with equal settings except seeds, in the order of their first members."""
    members: dict[str, list[RunLog]] = {}
    for log in logs:
        shared = {key: value for key, value in log.settings.items() if not _is_own(key)}
        members.setdefault(repr(shared), []).append(log)

    names = _names([runs[0] for runs in members.values()])
    return [Group(name, tuple(runs)) for name, runs in zip(names, members.values(), strict=True)]


def differences(logs: Sequence[RunLog]) -> dict[str, list[Any]]:
    """Return the settings with different values, except seeds and names: one value per run."""
    keys = dict.fromkeys(key for log in logs for key in log.settings if not _is_own(key))
    different = {}
    for key in keys:
        values = [log.settings.get(key) for log in logs]
        if any(value != values[0] for value in values):
            different[key] = values
    return different


def band(group: Group, tag: str, against: str) -> Band | None:
    """Return the interquartile mean of ``tag`` over a group's runs, None if a run lacks the tag.

    ``against`` is the x-axis, ``env_steps`` or ``seconds``. It spans what all runs have.
    """
    curves = [log.curves[tag] for log in group.runs if tag in log.curves]
    if len(curves) < len(group.runs):
        return None
    xs = [getattr(curve, against) for curve in curves]
    start = max(x[0] for x in xs)
    end = min(x[-1] for x in xs)
    grid = np.linspace(start, max(end, start), NUM_POINTS)
    values = [np.interp(grid, x, curve.values) for x, curve in zip(xs, curves, strict=True)]
    values = np.stack(values, axis=1)
    mean = interquartile_mean(values)
    if len(curves) == 1:
        return Band(grid, mean, mean, mean)
    return Band(grid, mean, *bootstrap_interval([values]))


def _is_own(key: str) -> bool:
    return key.startswith(_OWN)


def _names(logs: Sequence[RunLog]) -> list[str]:
    """Return each run's label, with the distinguishing settings of equal labels."""
    names = [log.label for log in logs]
    for label, count in Counter(names).items():
        if count == 1:
            continue
        places = [k for k, log in enumerate(logs) if log.label == label]
        differing = differences([logs[k] for k in places])
        for number, k in enumerate(places):
            words = [
                f"{key.rpartition('.')[2]}={values[number]}" for key, values in differing.items()
            ]
            if len(words) > _MOST_WORDS:
                words = [*words[:_MOST_WORDS], f"{len(words) - _MOST_WORDS} more differ"]
            names[k] = ", ".join((label, *words))
    return names


def _curve(points: Sequence[Any], begin: float) -> Curve:
    """Return a tag's points as a curve of a run with its first point at ``begin`` [s]."""
    return Curve(
        np.array([point.step for point in points], dtype=np.float64),
        np.array([point.wall_time - begin for point in points]),
        np.array([point.value for point in points]),
    )
