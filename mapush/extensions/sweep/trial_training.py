"""Trials' trainings in separate processes. Optuna follows their curves."""

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
from mapush.extensions.sweep.child import wait_until_saved
from mapush.extensions.sweep.space import SETTINGS, Space, assignments
from mqe.config import unknown

TRIALS = "trials"  # folder of the runs
OUTPUT = "output.log"
_POINTS = 100  # most points of a trial's curve that are compared with other trials
_PAUSE_S = 0.5  # between two looks at the trainings
_INTERRUPTED = (128 + signal.SIGTERM, -signal.SIGTERM)


class Training:
    """One trial's process."""

    def __init__(
        self,
        folder: Path,
        space: Space,
        trial: optuna.Trial,
        common: Sequence[str],
        variables: Mapping[str, str],
    ) -> None:
        """Start a trial's training in the sweep's ``folder``, or resume it.

        ``common`` are arguments for every trial, ``variables`` environment variables for this one.
        """
        self.trial = trial
        self.variables = variables
        self._space = space
        self._run = (folder / TRIALS / f"{trial.number:04d}").absolute()
        self._last_step = trial.study.trials[trial.number].last_step or 0
        self._is_pruned = False
        self._run.mkdir(parents=True, exist_ok=True)
        wait_until_saved(self._run)  # a killed sweep's training may still run
        self._curves = EventAccumulator(str(self._run), size_guidance={"scalars": 0})
        if (self._run / run_folder.CONFIG).is_file():
            words = ["--resume", str(self._run)]
        else:
            words = ["--config", str(folder / SETTINGS), "--out", str(self._run)]
            for assignment in assignments(space.values(trial.params)):
                words += ["--set", assignment]
        with (self._run / OUTPUT).open("ab") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "mapush.extensions.sweep.child", *words, *common],
                stdin=subprocess.PIPE,  # the child ends when this pipe closes, as on our death
                stdout=output,
                stderr=output,
                env=os.environ | variables,
                start_new_session=True,
            )

    def is_over(self) -> bool:
        """Report new points to Optuna, or the end. Return whether the training has ended."""
        code = self._child.poll()
        budget = self._space.run.runner.num_env_steps
        curve = self._curve()
        for step, value in curve:
            is_due = step >= self._last_step + budget / _POINTS or step >= budget
            if is_due and step > self._last_step:
                self._last_step = step
                self.trial.report(value, step)
                if code is None and not self._is_pruned and self.trial.should_prune():
                    self._is_pruned = True
                    self.end()
        if code is None:
            return False
        say(f"Trial {self.trial.number}: {self._tell(code, curve)}.")
        return True

    def end(self) -> None:
        """Ask the training to save its state and end."""
        assert self._child.stdin is not None
        self._child.stdin.close()

    def wait(self) -> None:
        """Wait until the training has ended."""
        self._child.wait()

    def _curve(self) -> list[tuple[int, float]]:
        """Return the metric's curve."""
        self._curves.Reload()
        if self._space.cfg.metric not in self._curves.Tags()["scalars"]:
            return []
        points = self._curves.Scalars(self._space.cfg.metric)
        return [(point.step, point.value) for point in points]

    def _tell(self, code: int, curve: Sequence[tuple[int, float]]) -> str:
        """Report the trial's end to Optuna. Return the end in words.

        An interrupted trial stays open.
        """
        study = self.trial.study
        metric = self._space.cfg.metric
        if self._is_pruned:
            study.tell(self.trial, state=TrialState.PRUNED)
            return "stopped early"
        if code in _INTERRUPTED:
            return "interrupted; it resumes when the sweep is started again"
        if code == 0 and curve:
            study.tell(self.trial, curve[-1][1])
            return f"finished, {metric} {curve[-1][1]:.3f} at {curve[-1][0]:,} env steps"
        if code:
            lines = (self._run / OUTPUT).read_text(errors="replace").strip().splitlines()
            reason = f"exit code {code}: {lines[-1] if lines else 'nothing was written'}"
        else:
            message = unknown("metric", metric, self._curves.Tags()["scalars"])
            reason = f"{message}; or runner.num_env_steps is too low for it"
        self.trial.set_user_attr("reason", reason)
        study.tell(self.trial, state=TrialState.FAIL)
        return f"failed ({reason})"


def train_all(
    folder: Path,
    space: Space,
    trials: Iterator[optuna.Trial],
    common: Sequence[str],
    places: Sequence[Mapping[str, str]],
) -> None:
    """Train all trials, one at a time in each of ``places``.

    A place has the environment variables of its trials. On an exception, for instance by a signal,
    the trainings save their state and end first.
    """
    free = list(places)
    running: list[Training] = []
    try:
        while True:
            while free and (trial := next(trials, None)) is not None:
                running.append(Training(folder, space, trial, common, free.pop(0)))
            if not running:
                return
            time.sleep(_PAUSE_S)
            for training in list(running):
                if training.is_over():
                    running.remove(training)
                    free.append(training.variables)
    finally:
        for training in running:
            training.end()
        for training in running:
            training.wait()
