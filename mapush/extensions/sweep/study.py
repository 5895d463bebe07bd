"""A sweep as an Optuna study in a folder: its search, pruner and journal are Optuna's own.

``sweep.yaml`` is the space, ``settings.yaml`` the run, and ``study.log`` Optuna's journal.
``trials/0007/`` is the run folder of trial 7. A trial with the state RUNNING was interrupted, and
resumes.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from mapush.extensions.sweep.space import Space
from mqe.config import ConfigError

JOURNAL = "study.log"
_SEED = "seed"  # user attributes of a trial
_REPEATED = "repeats"  # number of the trial with the same settings and the search's seed
REASON = "reason"  # why it failed
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Setting(NamedTuple):
    """One combination of values, with a result for each seed."""

    trial: int  # number of its first trial
    values: dict[str, Any]
    seeds: tuple[int, ...]
    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean result."""
        return statistics.fmean(self.results)


class Sweep:
    """A sweep's trials."""

    def __init__(self, folder: Path, space: Space) -> None:
        """Open the study in ``folder``, or create it. Raise ConfigError for a damaged journal."""
        self.folder = folder
        self.space = space
        try:
            storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
            self.study = optuna.create_study(
                storage=storage,
                study_name="sweep",
                pruner=_pruner(space),
                direction="maximize" if space.cfg.mode == "max" else "minimize",
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{folder / JOURNAL}: cannot be read as a journal of Optuna "
                f"({type(error).__name__}); begin a new sweep"
            ) from None
        # A resumed search must not draw the same settings again.
        seed = (space.run.runner.seed + len(self.study.trials)) % 2**32
        if space.cfg.search == "optuna":
            startup = max(1, min(10, space.num_trials // 3))
            self.study.sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=startup, constant_liar=True
            )
        else:
            self.study.sampler = optuna.samplers.RandomSampler(seed)
        if space.cfg.search == "grid" and not self.study.trials:
            for point in space.grid():
                for run_seed in space.grid_seeds:
                    self.study.enqueue_trial(point, user_attrs={_SEED: run_seed})

    def run_folder(self, trial: int) -> Path:
        """Return a trial's run folder."""
        return self.folder / "trials" / f"{trial:04d}"

    def seed(self, trial: optuna.Trial | FrozenTrial) -> int:
        """Return a trial's seed."""
        return trial.user_attrs.get(_SEED, self.space.run.runner.seed)

    def may_stop(self, trial: optuna.Trial) -> bool:
        """Return whether a trial may be stopped early."""
        return self.space.cfg.stopping is not None and _REPEATED not in trial.user_attrs

    def interrupted(self) -> list[optuna.Trial]:
        """Return the trials left by a killed or interrupted sweep."""
        running = self.study.get_trials(states=(TrialState.RUNNING,))
        return [optuna.Trial(self.study, trial._trial_id) for trial in running]

    def trials(self) -> Iterator[optuna.Trial]:
        """Yield the trials to be trained: interrupted, enqueued, then new trials."""
        yield from self.interrupted()
        while self.study.get_trials(states=(TrialState.WAITING,)) or self._num_searched() < (
            self.space.num_trials
        ):
            yield self.study.ask(self.space.distributions)

    def repeat_best(self) -> None:
        """Enqueue the search's best settings with other seeds."""
        if self.space.cfg.search == "grid":
            return
        trials = self.study.trials
        done = {(trial.user_attrs.get(_REPEATED), trial.user_attrs.get(_SEED)) for trial in trials}
        candidates = [trial for trial in self._results() if _REPEATED not in trial.user_attrs]
        for best in candidates[: self.space.cfg.confirm]:
            for seed in self.space.cfg.seeds:
                if (best.number, seed) not in done:
                    attributes = {_SEED: seed, _REPEATED: best.number}
                    self.study.enqueue_trial(best.params, user_attrs=attributes)

    def ranking(self) -> list[Setting]:
        """Return the settings with a finished trial, the best first.

        Settings with other seeds come first, and only these seeds count. The search chose them for
        their first result.
        """
        groups: dict[Any, list[FrozenTrial]] = {}
        for trial in self._results():
            if trial.state == TrialState.COMPLETE:
                key = trial.user_attrs.get(_REPEATED, trial.number)
                if self.space.cfg.search == "grid":
                    key = json.dumps(trial.params)
                groups.setdefault(key, []).append(trial)
        settings = []
        for group in groups.values():
            repeated = [trial for trial in group if _REPEATED in trial.user_attrs] or group
            repeated.sort(key=lambda trial: trial.number)
            seeds = tuple(self.seed(trial) for trial in repeated)
            results = tuple(_result(trial) for trial in repeated)
            number = repeated[0].user_attrs.get(_REPEATED, repeated[0].number)
            values = self.space.values(repeated[0].params)
            settings.append(Setting(number, values, seeds, results))
        return sorted(
            settings, key=lambda setting: (len(setting.seeds) < 2, self._sign * setting.mean)
        )

    def importance(self) -> dict[str, float]:
        """Return each setting's fraction of the effect on good results (PED-ANOVA), {} for few
        trials.
        """
        if len(self._results()) < 8 or len(self.space.distributions) < 2:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(self.study, evaluator=evaluator)

    def count(self, state: TrialState) -> int:
        """Return the number of trials in a state."""
        return len(self.study.get_trials(states=(state,)))

    @property
    def _sign(self) -> float:
        return -1.0 if self.space.cfg.mode == "max" else 1.0

    def _num_searched(self) -> int:
        return sum(_REPEATED not in trial.user_attrs for trial in self.study.trials)

    def _results(self) -> list[FrozenTrial]:
        """Return trials with a result: finished trials, then stopped trials, the longest first."""
        trials = [trial for trial in self.study.get_trials(states=_ENDED) if trial.values]

        def order(trial: FrozenTrial) -> tuple[bool, int, float]:
            is_stopped = trial.state == TrialState.PRUNED
            steps = -(trial.last_step or 0) if is_stopped else 0
            return is_stopped, steps, self._sign * _result(trial)

        return sorted(trials, key=order)


def _result(trial: FrozenTrial) -> float:
    assert trial.value is not None
    return trial.value


def _pruner(space: Space) -> optuna.pruners.BasePruner:
    """Return asynchronous successive halving, or no pruner."""
    stopping = space.cfg.stopping
    if stopping is None:
        return optuna.pruners.NopPruner()
    first = stopping.first or space.run.runner.num_env_steps // stopping.keep**2
    return optuna.pruners.SuccessiveHalvingPruner(
        min_resource=max(first, 1), reduction_factor=stopping.keep, min_early_stopping_rate=0
    )
