"""Search and training of a sweep: Ray Tune runs trials, Optuna chooses settings, ASHA stops."""

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

# Ray reads these variables when it is imported. They turn off its own files, curves and telemetry:
# a sweep's folder has all its data.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")  # a failed trial has no metric
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # mapush sweep handles signals
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

LEAST_TRIALS = 8  # for the importance of settings
BEST_SHARE = 0.25  # of the trials, which importance compares with the rest
_PATIENCE_S = 10.0  # time for Ray to end once every trial has saved its state
_OBJECT_STORE = 80 * 2**20  # [bytes] Ray's minimum, enough for plain results

optuna.logging.set_verbosity(optuna.logging.ERROR)
# The sweep itself prints a line for a lost worker.
logging.getLogger("ray.tune").setLevel(logging.CRITICAL)


class Search:
    """Optuna's search, which includes the results of the sweep's earlier trials."""

    def __init__(self, space: Space, ledger: Ledger) -> None:
        """Create the study with the results in ``ledger``."""
        self._space = space
        self._distributions = distributions(space.parameters)
        # A resumed search must not draw the same settings again.
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

    def tell(self, trial: Trial) -> None:
        """Report the end of a trial to Optuna."""
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
    """Gives Ray the open trials of the ledger, then new ones; updates their records."""

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
        """Give out ``waiting`` and then ``num_new`` new trials.

        ``common`` are arguments of every trial's command line; ``on_end`` is called with each trial
        that ends.
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
        """Return the worker's configuration of the next trial, or that there is none."""
        if self._waiting:
            trial = self._waiting.popleft()
        elif self._num_new > 0 and self._search is not None:
            trial = self._search.choose(self.ledger)
            self._num_new -= 1
        else:
            return Searcher.FINISHED
        trial.points = []  # the worker reports all points of the run's curves again
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
        """Add a point to a trial's curve."""
        _keep(self._running[trial_id], result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record how a trial ended: by itself, by ASHA, or with its worker."""
        trial = self._running.pop(trial_id, None)
        if trial is None:
            return
        if error or result is None:
            trial.state = OPEN
        else:
            _keep(trial, result)  # Ray passes the last result to this method only
            if REASON in result:  # the training ended by itself
                trial.state = result[OUTCOME]
            elif self.interruption.signal is not None:
                trial.state = OPEN
            else:
                trial.state = STOPPED
            trial.reason = result.get(REASON)
        self.ledger.write(trial)
        if self._search is not None:
            self._search.tell(trial)
        self._on_end(trial)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the ledger is on disk."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the ledger is on disk."""


def run_stage(
    space: Space, stage: SearchStage, scheduler: TrialScheduler, jobs: int, gpus_per_trial: float
) -> None:
    """Run trials until the stage has no more.

    After a signal that asks for the end, the trials save their state, and Signalled is raised.
    """
    scratch = stage.ledger.folder.absolute() / ".ray"  # Ray's own files, which are not used later
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
    """Return ASHA with the results of earlier trials, or a scheduler that stops no trial."""
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


def frozen(trial: Trial, parameters: Sequence[Parameter]) -> optuna.trial.FrozenTrial:
    """Convert a trial that has ended to Optuna's type."""
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


class _Interrupted(tune.Stopper):
    """Ends all trials after a signal that asks for the end."""

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._interruption.signal is not None


@contextmanager
def _leaving_where_ray_is_gone(ledger: Ledger) -> Iterator[None]:
    """End this process soon if a signal ended Ray's processes as well.

    Ray's client would otherwise wait a minute for them. It runs no signal handlers while it waits,
    so a thread reads the signals from Python's wakeup descriptor.
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
    """Connect to the cluster that RAY_ADDRESS names, or run Ray on this machine."""
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
