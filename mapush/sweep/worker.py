"""Ray's workers: each starts a trial's training as a child process and follows its curves.

Only plain data passes through Ray, no tensors.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ray import tune
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harl_mapush.runs import run_folder
from mapush.sweep.child import GRACE_S
from mapush.sweep.trials import FAILED, FINISHED, OPEN, OUTPUT, wait_until_saved

# Keys of a result.
ENV_STEPS = "env_steps"
VALUE = "value"
OUTCOME = "outcome"
REASON = "reason"
_POINTS = 100  # most points of a trial's curve that ASHA compares with other trials
_PAUSE_S = 0.5
_INTERRUPTED = {
    128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
}


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


class TrialRun(tune.Trainable):
    """A trial as Ray Tune's Trainable: every step waits for the next point of its curve."""

    def setup(self, config: dict[str, Any]) -> None:
        """Start the training, or resume it if its folder has a run.

        ``config`` has the run's ``folder``, the arguments of a new training (``words``) and of any
        (``common``), ``metric``, ``budget`` [env steps] and ``cwd``.
        """
        self._folder = Path(config["folder"])
        self._budget = config["budget"]
        self._points = Points(self._folder, config["metric"], self._budget / _POINTS)
        self._metric = config["metric"]
        self._waiting: list[tuple[int, float]] = []
        wait_until_saved([self._folder], GRACE_S)  # a killed sweep's training may still run
        words = [*config["words"], "--out", str(self._folder)]
        if (self._folder / run_folder.CONFIG).is_file():
            words = ["--resume", str(self._folder)]
        self._output = (self._folder / OUTPUT).open("ab")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "mapush.sweep.child", *words, *config["common"]],
            stdin=subprocess.PIPE,  # the child ends when this pipe closes, as on our death
            stdout=self._output,
            stderr=self._output,
            cwd=config["cwd"],
            start_new_session=True,
        )

    def step(self) -> dict[str, Any]:
        """Return the next point, or after the last one how the training ended."""
        try:
            return self._next()
        except Exception as error:  # an error in reading curves ends the trial, not the sweep
            return {OUTCOME: FAILED, REASON: f"{type(error).__name__}: {error}", "done": True}

    def cleanup(self) -> None:
        """End the training, which saves its state first."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            self._child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._output.close()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save nothing: the run's folder has all state."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Load nothing: the run's folder has all state."""

    def _next(self) -> dict[str, Any]:
        while True:
            code = self._child.poll()
            self._waiting += [point for point in self._points.new() if point[0] < self._budget]
            if self._waiting:
                steps, value = self._waiting.pop(0)
                return {ENV_STEPS: steps, VALUE: value, OUTCOME: OPEN}
            if code is not None:
                return self._ending(code)
            time.sleep(_PAUSE_S)

    def _ending(self, code: int) -> dict[str, Any]:
        ended: dict[str, Any] = {OUTCOME: FINISHED, REASON: None, "done": True}
        known = self._points.all()
        if known:
            ended[ENV_STEPS] = known[-1][0]
            ended[VALUE] = known[-1][1]
        if code in _INTERRUPTED or code == -signal.SIGTERM:
            ended[OUTCOME] = OPEN
        elif code != 0:
            ended[OUTCOME] = FAILED
            ended[REASON] = f"exit code {code}: {_last_line(self._folder / OUTPUT)}"
        elif not known:
            ended[OUTCOME] = FAILED
            ended[REASON] = f"its curves never had {self._metric}; raise runner.num_env_steps"
        return ended


def _last_line(path: Path) -> str:
    """Return the last line of a run's output."""
    with path.open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - 4000))
        lines = stream.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing was written")
