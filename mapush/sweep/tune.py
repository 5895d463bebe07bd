"""Ray Tune as the sweep's engine: it hands out trials to workers, Optuna chooses settings, ASHA
ends trials early.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Read when Ray is imported. Ray's own files, curves and telemetry are not wanted: a sweep's folder
# holds everything.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")  # a failed trial has no metric
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # signals are the command's
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")

import optuna
import ray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState, create_trial
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from harl_mapush.collectors import ray_cluster
from harl_mapush.interruption import ENDING_SIGNALS, SIGNALLED, Interruption, Signalled
from mapush.sweep.child import GRACE_S
from mapush.sweep.space import Parameter, Space, assignments
from mapush.sweep.trials import (
    FAILED,
    FINISHED,
    OPEN,
    SEARCH,
    SETTINGS,
    STOPPED,
    Ledger,
    Trial,
    order_of_merit,
    wait_until_saved,
)
from mapush.sweep.worker import ENV_STEPS, OUTCOME, REASON, VALUE, TrialRun
from mqe.cores import num_cores

# of what importance is computed from
LEAST_TRIALS = 8
BEST_SHARE = 0.25
_PATIENCE_S = 10.0  # with Ray, once every trial has saved its state
# Bytes; the least that Ray takes, for only plain results pass through it.
_OBJECT_STORE = 80 * 2**20

optuna.logging.set_verbosity(optuna.logging.ERROR)
# A lost worker is one line of the sweep's own.
logging.getLogger("ray.tune").setLevel(logging.CRITICAL)


class Search:
    """Optuna's search, with all that earlier trials of the sweep have shown."""

    def __init__(self, space: Space, ledger: Ledger) -> None:
        """Begin where the ledger stands."""
        self._space = space
        self._distributions = distributions(space.parameters)
        # A resumed search draws other settings.
        seed = (space.run.runner.seed + len(ledger.trials)) % 2**32
        startup = max(1, min(10, space.num_settings // 3))
        if space.cfg.search == "random":
            sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed)
        else:
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=startup, constant_liar=True
            )
        direction = "maximize" if space.cfg.mode == "max" else "minimize"
        self.study = optuna.create_study(sampler=sampler, direction=direction)
        for trial in ledger.trials:
            if trial.stage == SEARCH and trial.state != OPEN:
                self.study.add_trial(frozen(trial, space.parameters))
        self._asked: dict[int, optuna.Trial] = {}

    def ask(self) -> tuple[optuna.Trial, dict[str, Any]]:
        """Return a new trial, and its values by name."""
        asked = self.study.ask(self._distributions)
        return asked, from_params(asked.params, self._space.parameters)

    def ask_again(self, trial: Trial) -> None:
        """Take up a trial that was chosen before."""
        self.study.enqueue_trial(to_params(trial.values, self._space.parameters))
        self._asked[trial.number] = self.study.ask(self._distributions)

    def choose(self, ledger: Ledger) -> Trial:
        """Choose settings for a new trial, and record it."""
        asked, values = self.ask()
        trial = ledger.add(None, values, self._space.seeds[0])
        self._asked[trial.number] = asked
        return trial

    def tell(self, trial: Trial) -> None:
        """Learn how a trial ended."""
        asked = self._asked.pop(trial.number, None)
        if asked is None or trial.state == OPEN:
            return
        for steps, value in trial.points:
            asked.report(value, steps)
        state = {FINISHED: TrialState.COMPLETE, STOPPED: TrialState.PRUNED}.get(
            trial.state, TrialState.FAIL
        )
        self.study.tell(asked, trial.value if state == TrialState.COMPLETE else None, state)


class SearchStage(Searcher):
    """Hands trials to Ray: those that wait in the ledger first, then new ones of the search; keeps
    their records.
    """

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
        """``common`` are words of every trial's command line; ``on_end`` is called with each trial
        that is over.
        """
        super().__init__(metric=VALUE, mode=space.cfg.mode)
        self.ledger = ledger
        self._space = space
        self._search = search
        self._num_new = num_new
        self._waiting = deque(waiting)
        self._common = list(common)
        self._on_end = on_end
        self.interruption = Interruption()
        self._running: dict[str, Trial] = {}
        if search is not None:
            for trial in waiting:
                search.ask_again(trial)

    def suggest(self, trial_id: str) -> Any:
        """Return what a worker needs to know of the next trial, or that there is none."""
        if self._waiting:
            trial = self._waiting.popleft()
        elif self._num_new > 0 and self._search is not None:
            trial = self._search.choose(self.ledger)
            self._num_new = self._num_new - 1
        else:
            return Searcher.FINISHED
        trial.points = []  # they come again, from the run's curves
        self._running[trial_id] = trial
        sets = [word for text in assignments(trial.values) for word in ("--set", text)]
        run_file = str((self.ledger.folder / SETTINGS).absolute())
        return {
            "folder": str(self.ledger.run_folder(trial).absolute()),
            "words": ["--config", run_file, *sets, "--seed", str(trial.seed)],
            "common": self._common,
            "metric": self._space.cfg.metric,
            "budget": self._space.run.runner.num_env_steps,
            "cwd": str(Path.cwd()),
        }

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Keep a point of a trial."""
        _keep(self._running[trial_id], result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record how a trial ended: by itself, by ASHA, or with its worker, after which it may be
        resumed.
        """
        trial = self._running.pop(trial_id, None)
        if trial is None:
            return
        if error or result is None:
            trial.state = OPEN
        else:
            _keep(trial, result)  # Ray gives the last one with the end alone
            is_over = REASON in result
            is_interrupted = self.interruption.signal is not None
            trial.state = result[OUTCOME] if is_over else OPEN if is_interrupted else STOPPED
            trial.reason = result.get(REASON)
        self.ledger.write(trial)
        if self._search is not None:
            self._search.tell(trial)
        self._on_end(trial)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the ledger is on the disk."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""


def run_stage(
    space: Space, stage: SearchStage, scheduler: TrialScheduler, jobs: int, gpus_per_trial: float
) -> None:
    """Run trials until the stage has no more.

    A signal that asks for an end has trials save their state first; then it is raised, as
    Signalled.
    """
    scratch = stage.ledger.folder.absolute() / ".ray"  # Ray's own notes, which nothing reads again
    shutil.rmtree(scratch, ignore_errors=True)
    resources = {"cpu": 1.0, "gpu": gpus_per_trial}
    tuner = tune.Tuner(
        tune.with_resources(TrialRun, resources),
        tune_config=tune.TuneConfig(
            search_alg=stage,
            scheduler=scheduler,
            num_samples=-1,
            max_concurrent_trials=None if gpus_per_trial else jobs,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            storage_path=str(scratch), name="tune", verbose=0, stop=_Interrupted(stage.interruption)
        ),
    )
    try:
        with (
            _leaving_where_ray_is_gone(stage.ledger),
            _cluster(jobs, gpus_per_trial),
            stage.interruption,  # after Ray has installed handlers of its own
        ):
            tuner.fit()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if stage.interruption.signal is not None:
        raise Signalled(stage.interruption.signal)


def stopping(space: Space, ledger: Ledger) -> TrialScheduler:
    """Return ASHA with all that earlier trials of the sweep have shown, or what stops none."""
    cfg = space.cfg.stopping
    if cfg is None:
        return FIFOScheduler()
    scheduler = ASHAScheduler(
        ENV_STEPS,
        VALUE,
        space.cfg.mode,
        max_t=space.run.runner.num_env_steps,
        grace_period=space.first_rung,
        reduction_factor=cfg.keep,
        stop_last_trials=False,
    )
    for trial in ledger.trials:
        if trial.stage == SEARCH and trial.state in (FINISHED, STOPPED):
            before: Any = SimpleNamespace(trial_id=f"before-{trial.number}")
            controller: Any = None
            scheduler.on_trial_add(controller, before)
            for steps, value in trial.points:
                scheduler.on_trial_result(controller, before, {ENV_STEPS: steps, VALUE: value})
    return scheduler


def importance(space: Space, trials: Sequence[Trial]) -> dict[str, float]:
    """Return the share of each parameter in what separates the best quarter of trials (PED-ANOVA),
    the largest first.

    Empty where it cannot be said: fewer than eight trials, or one parameter.
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


def frozen(trial: Trial, parameters: Sequence[Parameter]) -> optuna.trial.FrozenTrial:
    """Return a trial that is over as Optuna keeps it."""
    state = {FINISHED: TrialState.COMPLETE, STOPPED: TrialState.PRUNED, FAILED: TrialState.FAIL}[
        trial.state
    ]
    return create_trial(
        state=state,
        value=trial.value if state == TrialState.COMPLETE else None,
        params=to_params(trial.values, parameters),
        distributions=distributions(parameters),
        intermediate_values=dict(trial.points) if state != TrialState.FAIL else {},
    )


def distributions(parameters: Sequence[Parameter]) -> dict[str, BaseDistribution]:
    """Return what Optuna draws from: of a list, the index."""
    return {parameter.key: _distribution(parameter) for parameter in parameters}


def to_params(values: dict[str, Any], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return a setting as Optuna knows it."""
    return {
        p.key: p.choices.index(values[p.key]) if p.choices else values[p.key] for p in parameters
    }


def from_params(params: dict[str, Any], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return what Optuna chose as a setting."""
    return {p.key: p.choices[params[p.key]] if p.choices else params[p.key] for p in parameters}


class _Interrupted(tune.Stopper):
    """Ends all trials once a signal has asked for it."""

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._interruption.signal is not None


@contextmanager
def _leaving_where_ray_is_gone(ledger: Ledger) -> Iterator[None]:
    """End this process where a signal ended Ray's processes as well: Ray's client would wait a
    minute for them.

    Ray's client runs no signal handlers while it waits, so a thread reads the signals from Python's
    wakeup descriptor.
    """
    ours, pythons = os.pipe()
    os.set_blocking(pythons, False)
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            if not select.select([ours], [], [], 0.5)[0]:
                continue
            number = os.read(ours, 1)[0]
            if number not in ENDING_SIGNALS:
                continue
            wait_until_saved(ledger.open_folders(), GRACE_S)
            if not is_over.wait(_PATIENCE_S):
                name = signal.Signals(number).name
                sys.stderr.write(
                    f"mapush sweep: ended by {name}; continue with: mapush sweep {ledger.folder}\n"
                )
                sys.stderr.flush()
                os._exit(SIGNALLED + number)

    watcher = threading.Thread(target=watch, daemon=True)
    before = signal.set_wakeup_fd(pythons, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        is_over.set()
        watcher.join(GRACE_S + _PATIENCE_S)
        os.close(ours)
        os.close(pythons)


def _keep(trial: Trial, result: dict[str, Any]) -> None:
    if VALUE in result and result[ENV_STEPS] > trial.env_steps:
        trial.points.append((result[ENV_STEPS], result[VALUE]))


@contextmanager
def _cluster(jobs: int, gpus_per_trial: float) -> Iterator[None]:
    """Run Ray: the cluster that RAY_ADDRESS names, or else this machine for as long as this
    lasts.
    """
    ray_cluster.connect(
        num_cpus=num_cores() if gpus_per_trial else jobs, object_store_memory=_OBJECT_STORE
    )
    try:
        yield
    finally:
        ray.shutdown()


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.choices:
        return CategoricalDistribution(tuple(range(len(parameter.choices))))
    if parameter.is_whole:
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.is_log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.is_log)
