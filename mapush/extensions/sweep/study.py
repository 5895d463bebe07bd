"""A sweep's study in its folder: search, pruner, journal and dashboard are Optuna's own.

``study.log`` is the journal. A trial with the state RUNNING was interrupted, and resumes.
"""

from collections.abc import Iterator
from pathlib import Path

import optuna
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from mapush.extensions.sweep.space import Space
from mqe.config import ConfigError

JOURNAL = "study.log"
_KEEP = 3  # one trial in so many continues past each rung

optuna.logging.set_verbosity(optuna.logging.ERROR)


def open_study(folder: Path, space: Space) -> optuna.Study:
    """Open the study in ``folder``, or create it. Raise ConfigError for a damaged journal."""
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if space.cfg.stopping:
        first = max(1, space.run.runner.num_env_steps // _KEEP**2)
        pruner = optuna.pruners.SuccessiveHalvingPruner(first, _KEEP, 0)
    try:
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
            study_name="sweep",
            pruner=pruner,
            direction="maximize",
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
    return study


def trials(study: optuna.Study, space: Space) -> Iterator[optuna.Trial]:
    """Yield the trials to be trained: interrupted trials, then new ones."""
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        yield optuna.Trial(study, trial._trial_id)
    while len(study.trials) < space.cfg.num_trials:
        yield study.ask(space.distributions)


def num_running(study: optuna.Study) -> int:
    """Return the number of open trials."""
    return len(study.get_trials(states=(TrialState.RUNNING,)))


def ranking(study: optuna.Study) -> list[FrozenTrial]:
    """Return the finished trials, the best first."""
    finished = study.get_trials(states=(TrialState.COMPLETE,))
    return sorted(finished, key=lambda trial: trial.values[0], reverse=True)
