"""A trial's training as a child process, followed by the curves that it writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harl_mapush.runs import run_folder
from mapush.extensions.sweep.child import GRACE_S
from mapush.extensions.sweep.trials import FAILED, FINISHED, OPEN, OUTPUT, wait_until_saved

_POINTS = 100  # most points of a trial's curve that are compared with other trials
_INTERRUPTED = {
    128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
}


class TrialSpec(NamedTuple):
    """A trial as plain data."""

    folder: str  # of the run
    words: list[str]  # command line of a new training
    common: list[str]  # further words, also of a training that resumes
    metric: str
    budget: int  # [env steps]
    cwd: str


class Progress(NamedTuple):
    """New points of a trial's curve, and how it ended."""

    points: list[tuple[int, float]]  # env steps, metric
    outcome: str | None = None  # None: it trains
    reason: str | None = None  # of a failure


class RunningTrial(Protocol):
    """A trial that was started."""

    def poll(self) -> Progress:
        """Return the progress since the last call."""
        ...

    def end(self) -> None:
        """Ask the training to save its state and end."""
        ...

    def wait(self) -> None:
        """Wait until it has ended."""
        ...


class Points:
    """The curve of a metric that a run writes, as points with a least distance."""

    def __init__(self, folder: Path, metric: str, interval: float) -> None:
        """Read the curves of a run; points are at least ``interval`` env steps apart."""
        self._folder = folder
        self._log: EventAccumulator | None = None
        self._metric = metric
        self._interval = interval
        self._last = 0  # env steps

    def new(self) -> list[tuple[int, float]]:
        """Return the points written since the last call."""
        found = []
        for steps, value in self.all():
            if steps >= self._last + self._interval:
                found.append((steps, value))
                self._last = steps
        return found

    def all(self) -> list[tuple[int, float]]:
        """Return all points so far."""
        if not self._folder.is_dir():  # the run has not created it yet
            return []
        if self._log is None:
            self._log = EventAccumulator(
                str(run_folder.curves_folder(self._folder)), size_guidance={"scalars": 0}
            )
        self._log.Reload()
        if self._metric not in self._log.Tags()["scalars"]:
            return []
        return [(point.step, point.value) for point in self._log.Scalars(self._metric)]


class TrialProcess:
    """A trial that trains in a child process of this one."""

    def __init__(
        self, spec: TrialSpec, variables: Mapping[str, str], is_grandchild: bool = False
    ) -> None:
        """Start the training, or resume it if its folder holds some of it.

        ``variables`` are added to its environment variables. If it ``is_grandchild``, a shell
        starts it and waits for it. Ray kills the children of its worker when the sweep is killed,
        but not theirs; the training notices the end of its standard input, and saves.
        """
        self._spec = spec
        self._folder = Path(spec.folder)
        self._points = Points(self._folder, spec.metric, spec.budget / _POINTS)
        wait_until_saved([self._folder], GRACE_S)  # a killed sweep's training may still run
        if (self._folder / run_folder.CONFIG).is_file():
            words = ["--resume", spec.folder]
        else:
            words = [*spec.words, "--out", spec.folder]
        shell = ["sh", "-c", '"$@"; exit $?', "sh"] if is_grandchild else []
        self._output = (self._folder / OUTPUT).open("ab")
        self._child = subprocess.Popen(
            [*shell, sys.executable, "-m", "mapush.extensions.sweep.child", *words, *spec.common],
            stdin=subprocess.PIPE,  # the child ends when this pipe closes, as on our death
            stdout=self._output,
            stderr=self._output,
            cwd=spec.cwd,
            env=os.environ | variables,
            start_new_session=True,
        )

    def poll(self) -> Progress:
        """Return the progress since the last call; the last point comes with the end."""
        try:
            return self._progress()
        except Exception as error:  # an error in reading curves ends the trial, not the sweep
            self.end()
            return Progress([], FAILED, f"{type(error).__name__}: {error}")

    def end(self) -> None:
        """Ask the training to save its state and end."""
        if self._child.stdin is not None:
            self._child.stdin.close()

    def wait(self) -> None:
        """Wait until it has ended."""
        self._child.wait()
        self._output.close()

    def _progress(self) -> Progress:
        code = self._child.poll()
        if code is None:
            points = [point for point in self._points.new() if point[0] < self._spec.budget]
            return Progress(points)

        known = self._points.all()
        last = known[-1:]
        if code in _INTERRUPTED or code == -signal.SIGTERM:
            return Progress(last, OPEN)
        if code != 0:
            return Progress(last, FAILED, f"exit code {code}: {_last_line(self._folder / OUTPUT)}")
        if not known:
            reason = f"its curves never had {self._spec.metric}; raise runner.num_env_steps"
            return Progress([], FAILED, reason)
        return Progress([*self._points.new(), *last], FINISHED)


def _last_line(path: Path) -> str:
    """Return the last line of a run's output."""
    with path.open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - 4000))
        lines = stream.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing was written")
