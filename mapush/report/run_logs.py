"""Logs of runs: settings, curves, and groups of runs that differ in their seeds only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl_mapush.runs import run_folder
from mqe.config import ConfigError, flatten

_OWN = (  # settings without an effect on the policy, and the seed
    "runner.seed",
    "runner.max_wall_time",
    "runner.checkpoint_interval",
    "runner.torch_threads",
    "sim.device",
    "logger.exp_name",
    "logger.out_dir",
    "logger.interval",
)
NUM_POINTS = 200  # of a band

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """The values of one tag over a run."""

    env_steps: Array
    seconds: Array  # since the run's first point
    values: Array


@dataclass(frozen=True)
class RunLog:
    """The settings of a run by dotted name, and its curves by tag."""

    folder: Path
    settings: dict[str, Any]
    curves: dict[str, Curve]


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds only; the name tells the groups apart."""

    name: str
    runs: tuple[RunLog, ...]


def read_run(folder: Path) -> RunLog:
    """Read a run's settings and curves; raise ConfigError if ``folder`` has none."""
    if not (folder / run_folder.CONFIG).is_file():
        raise ConfigError(f"{folder} is no run: it lacks {run_folder.CONFIG}; name a run's folder")
    curves = _read_curves(run_folder.curves_folder(folder))
    if not curves:
        raise ConfigError(f"{folder}: it has no curves yet; wait for the first iterations")
    return RunLog(folder, flatten(run_folder.read_config(folder)), curves)


def groups(logs: Sequence[RunLog]) -> list[Group]:
    """Group runs that differ in their seeds only, in the order of their first members."""
    members: dict[str, list[RunLog]] = {}
    for log in logs:
        shared = {key: value for key, value in log.settings.items() if key not in _OWN}
        members.setdefault(repr(shared), []).append(log)

    differing = differences(logs)
    named = []
    for several in members.values():
        first = several[0]
        words = [
            f"{key.rpartition('.')[2]}={values[logs.index(first)]}"
            for key, values in differing.items()
        ]
        seeds = ", ".join(str(log.settings.get("runner.seed")) for log in several)
        named.append(
            Group(f"{', '.join(words) or first.folder.name} (seed {seeds})", tuple(several))
        )
    return named


def differences(logs: Sequence[RunLog]) -> dict[str, list[Any]]:
    """Return the settings that differ between runs, except seeds and names: a value per run."""
    keys = dict.fromkeys(key for log in logs for key in log.settings if key not in _OWN)
    values = {key: [log.settings.get(key) for log in logs] for key in keys}
    return {key: each for key, each in values.items() if any(value != each[0] for value in each)}


def band(group: Group, tag: str, against: str) -> tuple[Array, Array, Array, Array] | None:
    """Return x, mean, minimum and maximum of ``tag`` over a group's runs; None if a run lacks it.

    ``against`` is the x-axis, ``env_steps`` or ``seconds``. The curves end with the shortest run.
    """
    curves = [log.curves[tag] for log in group.runs if tag in log.curves]
    if len(curves) < len(group.runs):
        return None
    xs = [getattr(curve, against) for curve in curves]
    start = max(x[0] for x in xs)
    end = min(x[-1] for x in xs)
    grid = np.linspace(start, max(end, start), NUM_POINTS)
    values = np.stack(
        [np.interp(grid, x, curve.values) for x, curve in zip(xs, curves, strict=True)]
    )
    return grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0)


def _read_curves(folder: Path) -> dict[str, Curve]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # Size 0 keeps all points, except those that a later run of the same steps replaced.
    log = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    log.Reload()
    points = {tag: log.Scalars(tag) for tag in log.Tags()["scalars"]}
    begin = min((each[0].wall_time for each in points.values()), default=0.0)
    return {
        tag: Curve(
            np.array([point.step for point in each], dtype=np.float64),
            np.array([point.wall_time - begin for point in each]),
            np.array([point.value for point in each]),
        )
        for tag, each in points.items()
    }
