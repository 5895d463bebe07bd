"""A sweep's study in its folder: search, pruner, journal and dashboard are Optuna's own.

``study.log`` is the journal. A trial with the state RUNNING was interrupted, and resumes.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from mapush.extensions.sweep.space import SEED, Space
from mqe.config import ConfigError

JOURNAL = "study.log"
REASON = "reason"  # user attribute of a failed trial
_KEEP = 3  # one trial in so many continues past each rung

optuna.logging.set_verbosity(optuna.logging.ERROR)


def open_study(folder: Path, space: Space) -> optuna.Study:
    """Open the study in ``folder``, or create it. Raise ConfigError for a damaged journal."""
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if space.cfg.stopping and space.cfg.search != "grid":
        first = max(1, space.run.runner.num_env_steps // _KEEP**2)
        pruner = optuna.pruners.SuccessiveHalvingPruner(first, _KEEP, 0)
    try:
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
            study_name="sweep",
            pruner=pruner,
            direction="maximize" if space.cfg.mode == "max" else "minimize",
            load_if_exists=True,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder / JOURNAL}: cannot be read as a journal of Optuna "
            f"({type(error).__name__}); begin a new sweep"
        ) from None
    # A resumed search must not draw the same settings again.
    seed = (space.run.runner.seed + len(study.trials)) % 2**32
    study.sampler = TPESampler(seed=seed, constant_liar=True)
    for point in space.grid()[len(study.trials) :]:
        study.enqueue_trial(point)
    return study


def trials(study: optuna.Study, space: Space) -> Iterator[optuna.Trial]:
    """Yield the trials to be trained: interrupted, enqueued, then new trials."""
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        yield optuna.Trial(study, trial._trial_id)
    num_trials = len(space.grid()) or space.cfg.num_trials
    while len(study.trials) < num_trials or count(study, TrialState.WAITING):
        yield study.ask(space.distributions)


def count(study: optuna.Study, state: TrialState) -> int:
    """Return the number of trials in a state."""
    return len(study.get_trials(states=(state,)))


class Setting(NamedTuple):
    """One combination of values, with a result for each seed."""

    trial: int  # number of its first trial
    values: dict[str, Any]
    results: list[float]

    @property
    def mean(self) -> float:
        """Mean result."""
        return statistics.fmean(self.results)


def ranking(study: optuna.Study, space: Space) -> list[Setting]:
    """Return the settings of finished trials, the best mean over seeds first."""
    groups: dict[str, list[FrozenTrial]] = {}
    for trial in study.get_trials(states=(TrialState.COMPLETE,)):
        params = {key: value for key, value in trial.params.items() if key != SEED}
        groups.setdefault(json.dumps(params), []).append(trial)
    settings = []
    for group in groups.values():
        values = space.values(group[0].params)
        results = [trial.value for trial in group if trial.value is not None]
        settings.append(Setting(group[0].number, values, results))
    is_falling = space.cfg.mode == "max"
    return sorted(settings, key=lambda setting: setting.mean, reverse=is_falling)
