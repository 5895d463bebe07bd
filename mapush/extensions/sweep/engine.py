"""A sweep's engine: Optuna chooses settings and ends trials early, child processes train them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState, create_trial

from mapush.extensions.sweep.places import Places
from mapush.extensions.sweep.space import Parameter, Space, assignments
from mapush.extensions.sweep.trial_process import Progress, RunningTrial, TrialSpec
from mapush.extensions.sweep.trials import (
    FINISHED,
    OPEN,
    SEARCH,
    SETTINGS,
    STOPPED,
    Ledger,
    Trial,
    order_of_merit,
)

LEAST_TRIALS = 8  # for the importance of settings
BEST_SHARE = 0.25  # of the trials, which importance compares with the rest
_PAUSE_S = 0.5  # between two looks at the trials

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Search:
    """Optuna's search and pruner, which include the results of the sweep's earlier trials."""

    def __init__(self, space: Space, ledger: Ledger) -> None:
        """Create the study with the results in ``ledger``."""
        self._space = space
        self._distributions = distributions(space.parameters)
        # A resumed search must not draw the same settings again.
        seed = (space.run.runner.seed + len(ledger.trials)) % 2**32
        startup = max(1, min(10, space.num_settings // 3))
        if space.cfg.search == "optuna":
            sampler: optuna.samplers.BaseSampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=startup, constant_liar=True
            )
        else:
            sampler = optuna.samplers.RandomSampler(seed)
        direction = "maximize" if space.cfg.mode == "max" else "minimize"
        self.study = optuna.create_study(
            sampler=sampler, pruner=_pruner(space), direction=direction
        )
        self._asked: dict[int, optuna.Trial] = {}
        for trial in ledger.trials:
            if trial.stage == SEARCH and trial.state != OPEN:
                self.ask_again(trial)
                for steps, value in trial.points:
                    self.is_hopeless(trial, steps, value)
                self.tell(trial)

    def ask(self) -> tuple[optuna.Trial, dict[str, Any]]:
        """Return a new Optuna trial, and its values by name."""
        asked = self.study.ask(self._distributions)
        return asked, from_params(asked.params, self._space.parameters)

    def ask_again(self, trial: Trial) -> None:
        """Resume a trial whose values were chosen before."""
        self.study.enqueue_trial(to_params(trial.values, self._space.parameters))
        self._asked[trial.number] = self.study.ask(self._distributions)

    def choose(self, ledger: Ledger) -> Trial:
        """Choose settings for a new trial, and record it."""
        asked, values = self.ask()
        trial = ledger.add(None, values, self._space.seeds[0])
        self._asked[trial.number] = asked
        return trial

    def is_hopeless(self, trial: Trial, steps: int, value: float) -> bool:
        """Report a point of a trial; return whether the trial should be stopped there."""
        asked = self._asked[trial.number]
        asked.report(value, steps)
        return asked.should_prune()

    def tell(self, trial: Trial) -> None:
        """Report the end of a trial to Optuna."""
        asked = self._asked.pop(trial.number)
        if trial.state == FINISHED:
            self.study.tell(asked, trial.value)
        elif trial.state == STOPPED:
            self.study.tell(asked, state=TrialState.PRUNED)
        else:
            self.study.tell(asked, state=TrialState.FAIL)


class Stage:
    """Gives out the open trials of the ledger, then new ones; updates their records."""

    def __init__(
        self,
        space: Space,
        ledger: Ledger,
        waiting: Sequence[Trial],
        search: Search | None,
        num_new: int,
        common: Sequence[str],
        on_end: Callable[[Trial], None],
    ) -> None:
        """Prepare a stage that starts the ``waiting`` trials and then ``num_new`` new ones.

        ``search`` chooses the new ones and stops hopeless ones; None stops none. ``common`` are
        arguments of every trial's command line; ``on_end`` is called with each trial that ends.
        """
        self.ledger = ledger
        self._space = space
        self._search = search
        self._num_new = num_new
        self._waiting = deque(waiting)
        self._common = list(common)
        self._on_end = on_end
        self._stopped: set[int] = set()  # trials that were asked to end
        if search is not None:
            for trial in waiting:
                search.ask_again(trial)

    def next_trial(self) -> Trial | None:
        """Return the next trial, or None if there is none."""
        if self._waiting:
            trial = self._waiting.popleft()
        elif self._num_new > 0 and self._search is not None:
            trial = self._search.choose(self.ledger)
            self._num_new -= 1
        else:
            return None
        trial.points = []  # its process reports all points of the run's curves again
        return trial

    def spec(self, trial: Trial) -> TrialSpec:
        """Return a trial as the process that trains it needs it."""
        sets = [word for text in assignments(trial.values) for word in ("--set", text)]
        run_file = str((self.ledger.folder / SETTINGS).absolute())
        return TrialSpec(
            folder=str(self.ledger.run_folder(trial).absolute()),
            words=["--config", run_file, *sets, "--seed", str(trial.seed)],
            common=self._common,
            metric=self._space.cfg.metric,
            budget=self._space.run.runner.num_env_steps,
            cwd=str(Path.cwd()),
        )

    def follow(self, trial: Trial, progress: Progress) -> bool:
        """Record a trial's progress; return whether it should be asked to end."""
        should_end = False
        for steps, value in progress.points:
            if steps <= trial.env_steps:
                continue
            trial.points.append((steps, value))
            is_last = progress.outcome is not None
            if self._search is None or is_last or trial.number in self._stopped:
                continue
            if self._search.is_hopeless(trial, steps, value):
                self._stopped.add(trial.number)
                should_end = True
        if progress.outcome is not None:
            self._end(trial, progress)
        return should_end

    def _end(self, trial: Trial, progress: Progress) -> None:
        """Record how a trial ended: by itself, stopped, or interrupted, to be resumed later."""
        trial.state = str(progress.outcome)
        if trial.state == OPEN and trial.number in self._stopped:
            trial.state = STOPPED
        trial.reason = progress.reason
        self.ledger.write(trial)
        if self._search is not None:
            self._search.tell(trial)
        self._on_end(trial)


def run_stage(stage: Stage, places: Places) -> None:
    """Train trials until the stage has no more.

    On an exception, such as that of a signal, the trials save their state and end first.
    """
    free = list(range(places.num_places))
    running: dict[int, tuple[Trial, RunningTrial]] = {}
    try:
        while True:
            while free:
                trial = stage.next_trial()
                if trial is None:
                    break
                place = free.pop()
                running[place] = trial, places.start(place, stage.spec(trial))
            if not running:
                return
            for place, (trial, process) in list(running.items()):
                progress = process.poll()
                if stage.follow(trial, progress):
                    process.end()
                if progress.outcome is not None:
                    process.wait()
                    del running[place]
                    free.append(place)
            time.sleep(_PAUSE_S)
    finally:
        for _, process in running.values():
            process.end()
        for _, process in running.values():
            process.wait()


def importance(space: Space, trials: Sequence[Trial]) -> dict[str, float]:
    """Return each parameter's share in what separates the best quarter of trials (PED-ANOVA).

    The largest share is first. The result is empty for a single parameter, or fewer than
    ``LEAST_TRIALS`` trials.
    """
    ordered = order_of_merit(trials, space.cfg.mode)
    if len(ordered) < LEAST_TRIALS or len(space.parameters) < 2:
        return {}
    study = optuna.create_study(direction="minimize")
    for place, trial in enumerate(ordered):
        params = to_params(trial.values, space.parameters)
        ranges = distributions(space.parameters)
        study.add_trial(create_trial(value=float(place), params=params, distributions=ranges))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


def distributions(parameters: Sequence[Parameter]) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions of the parameters; for a list, of its index."""
    return {parameter.key: _distribution(parameter) for parameter in parameters}


def to_params(values: dict[str, Any], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Convert a setting's values to Optuna's parameters."""
    return {
        p.key: p.choices.index(values[p.key]) if p.choices else values[p.key] for p in parameters
    }


def from_params(params: dict[str, Any], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Convert Optuna's parameters to a setting's values."""
    return {p.key: p.choices[params[p.key]] if p.choices else params[p.key] for p in parameters}


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.choices:
        return CategoricalDistribution(tuple(range(len(parameter.choices))))
    if parameter.is_whole:
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.is_log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.is_log)


def _pruner(space: Space) -> optuna.pruners.BasePruner:
    """Return the pruner of a sweep: asynchronous successive halving, or none."""
    stopping = space.cfg.stopping
    first = space.first_rung
    if stopping is None or first is None:
        return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(
        min_resource=first, reduction_factor=stopping.keep, min_early_stopping_rate=0
    )
