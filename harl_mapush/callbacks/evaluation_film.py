"""Films of the evaluation's first episode while a run trains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from harl_mapush.callback import Callback
from harl_mapush.callbacks.checkpoints import CheckpointSaver
from harl_mapush.callbacks.run_context import RunContext
from harl_mapush.callbacks.training_evaluation import TrainingEvaluation
from harl_mapush.progress import IterationReport
from mqe.config import ConfigError
from mqe.viewer.offscreen import choose_backend

FOLDER = "films"  # in the run folder


class FilmLog(Protocol):
    """A log with a view for films."""

    def add_film(self, path: Path, env_steps: int) -> None:
        """Show the film (.gif) of ``path``."""
        ...


def check_film(interval: int | None, evaluation_interval: int | None) -> None:
    """Raise ConfigError for films without an evaluation, or on a machine without OpenGL.

    ``interval`` and ``evaluation_interval`` are in env steps, None for no films and no evaluation.
    """
    if interval is None:
        return
    if evaluation_interval is None:
        raise ConfigError(
            f"logger.film_interval={interval}: films show the evaluation's first episode, and "
            "there is no evaluation; set runner.evaluation_interval as well, for example "
            f"--set runner.evaluation_interval={interval}"
        )
    try:
        choose_backend()
    except ConfigError as error:
        raise ConfigError(f"logger.film_interval={interval}: {error}") from None


class EvaluationFilm(Callback):
    """Films the team every ``interval`` env steps, and at the end of the run."""

    def __init__(
        self,
        evaluation: TrainingEvaluation | None,
        interval: int,
        saver: CheckpointSaver,
        logs: Sequence[FilmLog],
        run: RunContext,
    ) -> None:
        """Film in the worlds of ``evaluation``, None on all ranks but the first.

        The films are files in the folder of ``run``. ``logs`` show them.
        """
        self._evaluation = evaluation
        self._interval = interval
        self._saver = saver
        self._folder = run.folder / FOLDER
        self._logs = logs
        self._run = run

    def on_iteration(self, report: IterationReport) -> None:
        """Make a film if one is due."""
        progress = self._run.trainer.progress
        if not progress.is_due(self._interval):
            return
        self._saver.check_folder()
        if self._evaluation is not None:
            self._film(self._evaluation, report.env_steps)

    def _film(self, evaluation: TrainingEvaluation, env_steps: int) -> None:
        path = self._folder / f"{env_steps}.gif"
        try:
            self._folder.mkdir(exist_ok=True)
            evaluation.film(self._run.team, path, f"{env_steps:,} env steps")
        except (OSError, ConfigError) as error:
            self._run.say(f"Note: {path} cannot be filmed ({error}); training continues.")
            return
        for log in self._logs:
            log.add_film(path, env_steps)
