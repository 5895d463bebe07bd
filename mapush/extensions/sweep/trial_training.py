"""Trainings in separate processes. Optuna follows their curves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import optuna
from optuna.trial import TrialState
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harl_mapush.process import say
from harl_mapush.runs import run_folder
from mapush.extensions.sweep.child import GRACE_S
from mapush.extensions.sweep.file_names import SETTINGS
from mapush.extensions.sweep.space import assignments
from mapush.extensions.sweep.study import REASON, Sweep
from mqe.config import ConfigError

OUTPUT = "output.log"
_POINTS = 100  # most points of a trial's curve that are compared with other trials
_PAUSE_S = 0.5  # between two looks at the trainings
_INTERRUPTED = {
    128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
} | {-signal.SIGTERM}


class Training:
    """One trial's process."""

    def __init__(
        self,
        sweep: Sweep,
        trial: optuna.Trial,
        common: Sequence[str],
        variables: Mapping[str, str],
    ) -> None:
        """Start a trial's training, or resume it from its folder.

        ``common`` are arguments for every trial, ``variables`` environment variables for this one.
        """
        self.trial = trial
        self.outcome = ""  # words on the end; "" while it trains
        self._sweep = sweep
        self._folder = sweep.run_folder(trial.number).absolute()
        self._last_step = sweep.study.trials[trial.number].last_step or 0
        self._is_stopped = False
        self._log: EventAccumulator | None = None
        self._folder.mkdir(parents=True, exist_ok=True)
        _wait_until_saved(self._folder)  # a killed sweep's training may still run
        if (self._folder / run_folder.CONFIG).is_file():
            words = ["--resume", str(self._folder)]
        else:
            words = self._new_run(str((sweep.folder / SETTINGS).absolute()))
        self._output = (self._folder / OUTPUT).open("ab")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "mapush.extensions.sweep.child", *words, *common],
            stdin=subprocess.PIPE,  # the child ends when this pipe closes, as on our death
            stdout=self._output,
            stderr=self._output,
            env=os.environ | variables,
            start_new_session=True,
        )

    def is_over(self) -> bool:
        """Report new points to Optuna, or the end. Return whether the training has ended."""
        code = self._child.poll()
        budget = self._sweep.space.run.runner.num_env_steps
        curve = self._curve()
        for step, value in curve:
            is_due = step >= self._last_step + budget / _POINTS or step >= budget
            if is_due and step > self._last_step:
                self._last_step = step
                self.trial.report(value, step)
                self._stop_if_hopeless(code)
        if code is None:
            return False
        self._tell(code, curve)
        return True

    def end(self) -> None:
        """Ask the training to save its state and end."""
        if self._child.stdin is not None:
            self._child.stdin.close()

    def wait(self) -> None:
        """Wait until the training has ended."""
        self._child.wait()
        self._output.close()

    def _new_run(self, settings: str) -> list[str]:
        values = self._sweep.space.values(self.trial.params)
        words = ["--config", settings, "--seed", str(self._sweep.seed(self.trial))]
        for assignment in assignments(values):
            words += ["--set", assignment]
        return [*words, "--out", str(self._folder)]

    def _stop_if_hopeless(self, code: int | None) -> None:
        is_open = code is None and not self._is_stopped
        if is_open and self._sweep.may_stop(self.trial) and self.trial.should_prune():
            self._is_stopped = True
            self.end()

    def _curve(self) -> list[tuple[int, float]]:
        """Return the metric's curve."""
        folder = self._folder
        if not folder.is_dir():  # the run has not created it yet
            return []
        if self._log is None:
            self._log = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        self._log.Reload()
        metric = self._sweep.space.cfg.metric
        if metric not in self._log.Tags()["scalars"]:
            return []
        return [(point.step, point.value) for point in self._log.Scalars(metric)]

    def _tell(self, code: int, curve: Sequence[tuple[int, float]]) -> None:
        """Tell Optuna how the trial ended. An interrupted trial stays open."""
        study = self._sweep.study
        metric = self._sweep.space.cfg.metric
        reason = ""
        if self._is_stopped:
            study.tell(self.trial, state=TrialState.PRUNED)
            self.outcome = "stopped early"
        elif code in _INTERRUPTED:
            self.outcome = "interrupted; it resumes when the sweep is started again"
        elif code:
            reason = f"exit code {code}: {_last_line(self._folder / OUTPUT)}"
        elif not curve:
            reason = f"its curves never had {metric}; raise runner.num_env_steps"
        else:
            step, value = curve[-1]
            study.tell(self.trial, value)
            self.outcome = f"finished, {metric} {value:.3f} at {step:,} env steps"
        if reason:
            self.trial.set_user_attr(REASON, reason)
            study.tell(self.trial, state=TrialState.FAIL)
            self.outcome = f"failed ({reason})"


def train_all(
    sweep: Sweep,
    trials: Iterator[optuna.Trial],
    common: Sequence[str],
    places: Sequence[Mapping[str, str]],
) -> None:
    """Train all trials, one at a time in each of ``places``.

    A place has the environment variables of its trials. On an exception, for instance by a signal,
    the trainings save their state and end first.
    """
    free = list(places)
    running: list[tuple[Training, Mapping[str, str]]] = []
    try:
        while True:
            while free and (trial := next(trials, None)) is not None:
                variables = free.pop(0)
                running.append((Training(sweep, trial, common, variables), variables))
            if not running:
                return
            time.sleep(_PAUSE_S)
            for training, variables in list(running):
                if training.is_over():
                    training.wait()
                    running.remove((training, variables))
                    free.append(variables)
                    line = f"Trial {training.trial.number}: {training.outcome}."
                    say(line)
    finally:
        for training, _ in running:
            training.end()
        for training, _ in running:
            training.wait()


def _wait_until_saved(folder: Path) -> None:
    """Wait until no process trains in a run folder, for at most ``GRACE_S``."""
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline:
        try:
            with run_folder.locked(folder):
                return
        except ConfigError:
            time.sleep(0.2)


def _last_line(path: Path) -> str:
    """Return the last line in a training's output."""
    with path.open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - 4000))
        lines = stream.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing was written")
