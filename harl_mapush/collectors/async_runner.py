"""The training loop where other processes collect: the learner learns, in step with what
arrives.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from harl_mapush.algorithms.algorithm import Algorithm
from harl_mapush.callbacks.callback import Callback
from harl_mapush.collectors.collector import BlockReport
from harl_mapush.collectors.health import CollectorState, Snapshot, Window
from harl_mapush.collectors.ingest_thread import IngestThread
from harl_mapush.collectors.launcher import Launcher
from harl_mapush.collectors.learner import ReplayLearner
from harl_mapush.collectors.model_trainer import ModelTrainer
from harl_mapush.collectors.pool import CollectionError, Pool
from harl_mapush.collectors.rate_limiter import FairLock, RateLimiter, Stopwatch
from harl_mapush.collectors.remote_env import RemoteEnvSpec, merge_statistics
from harl_mapush.collectors.shared_memory import BlockLayout, SharedWeights
from harl_mapush.collectors.watchdog import Watchdog
from harl_mapush.config import RunCfg
from harl_mapush.distributed.ranks import ALONE
from harl_mapush.learning.off_policy.experience import ReplayExperience
from harl_mapush.learning.world_model.world_model import health_line
from harl_mapush.runner import make_progress
from harl_mapush.trainer import Monitor, matmul_precision
from mqe.config import to_dict

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.2  # between two looks at whether the run is to end, while the learner waits
# The ingest thread's time to end: it kills the collectors that do not end, and stores their blocks.
_END_S = 8.0


class AsyncRunner:
    """Trains an off-policy algorithm from the transitions of ``runner.collectors`` processes.

    An iteration ends when it has stored as many transitions as an iteration of ``Runner`` collects,
    and no update is owed for them.
    """

    def __init__(
        self, env: RemoteEnvSpec, algorithm: Algorithm, cfg: RunCfg, launcher: Launcher
    ) -> None:
        """Allocate the replay of the run ``cfg`` (``settled``); ``launcher`` starts its collectors.

        ``algorithm`` is a ``ReplayLearner``.
        """
        self._cfg = cfg
        self.cfg = cfg.runner
        self.env = env
        self.algorithm = cast(ReplayLearner, algorithm)
        self.launcher = launcher
        self.progress = make_progress(cfg.runner, env.num_envs, env.decision_period)
        self.experience: ReplayExperience = self.algorithm.make_rings(
            env.num_envs, cfg.runner.collectors
        )

        ratio = self.algorithm.cfg.update_ratio
        block = self.progress.num_transitions // cfg.runner.collectors
        self.limiter = RateLimiter(
            self.algorithm, self.experience, ratio, block, cfg.runner.max_policy_lag
        )
        self._updates_a_version = max(1, round(ratio * block))
        self._lock = FairLock()
        self._waited = Stopwatch()
        self._window = Window()
        self._stored_before = 0  # transitions, when the collectors were started
        self._num_starts = 0  # of collectors of each number in earlier parts of the run
        self._beat = time.monotonic()
        self._doing = "starting"
        self.pool: Pool | None = None
        self.ingest: IngestThread | None = None
        self.model_trainer: ModelTrainer | None = None  # of a learned model

    def learn(self, callbacks: Sequence[Callback] = (), folder: Path | None = None) -> None:
        """Train to the end; every process and thread has ended when this returns.

        Raises, besides the errors of ``Trainer.learn``, CollectionError if collecting or learning
        cannot continue.
        """
        monitor = Monitor(self.progress, callbacks, ALONE)
        with tempfile.TemporaryDirectory() as temporary:
            pool, ingest, watchdog = self._start(Path(temporary) if folder is None else folder)
            try:
                with matmul_precision(self.cfg.matmul_precision):
                    while not self.progress.is_done:
                        self._iterate(monitor)
            finally:
                watchdog.end()
                self._doing = "ending"
                if self.model_trainer is not None:
                    self.model_trainer.end(_END_S)
                ingest.end(_END_S)
                pool.close()
        self.check_counts()

    def statistics(self) -> dict[str, float]:
        """Return the statistics that the collectors reported last."""
        return self.env.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a run resumes from; the collectors' worlds then begin new
        episodes.
        """
        with self._lock.taken():
            return {
                "iteration": self.progress.iteration,
                "algorithm": self.algorithm.state_dict(),
                "storage": self.experience.state_dict(),
                "num_stored": self.limiter.num_stored,
                "num_starts": max(
                    (handle.num_starts for handle in self._handles()), default=self._num_starts
                ),
                "version": self.limiter.version,
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self.progress.iteration = state["iteration"]
        self.algorithm.load_state_dict(state["algorithm"])
        self.experience.load_state_dict(state["storage"])
        for ring in range(self.cfg.collectors):
            self.experience.cut(ring)
        self.limiter.num_stored = state["num_stored"]
        self._num_starts = state["num_starts"]
        self.limiter.version = state["version"]

    def snapshot(self) -> Snapshot:
        """Return everything that is counted."""
        limiter = self.limiter
        ingest = self.ingest
        pool = self.pool
        assert ingest is not None
        assert pool is not None
        lags = ingest.lags
        ingest.lags = []
        size = limiter.block
        states = []
        for handle in pool.handles:
            numbers = handle.numbers()
            newest = ingest.newest.get(handle.number)
            env_steps = (
                numbers.num_decisions
                * (self.env.num_envs // self.cfg.collectors)
                * self.env.decision_period
            )
            lag = 0 if newest is None else limiter.version - newest.version
            sent = size * numbers.num_sent
            states.append(
                CollectorState(env_steps, sent, numbers.waited_ns / 1e9, numbers.version, lag)
            )
        return Snapshot(
            time.monotonic(),
            tuple(states),
            limiter.num_stored,
            len(ingest.queue),
            pool.capacity,
            pool.num_restarts,
            pool.num_lost_episodes,
            limiter.num_warm,
            limiter.warmup,
            self.algorithm.num_updates,
            limiter.num_learned,
            limiter.num_counted,
            self._waited.total_s,
            sum(lags) / max(len(lags), 1),
            max(lags, default=0),
        )

    def health(self) -> tuple[str, ...]:
        """Return a line about every process, and one about a learned model."""
        self._window.add(self.snapshot())
        model = self.algorithm.model
        if model is None:
            line = None
        else:
            line = health_line({name: float(value) for name, value in model.metrics.items()})
        return self._window.lines() + (() if line is None else (line,))

    def _handles(self) -> list[Any]:
        return [] if self.pool is None else self.pool.handles

    def _start(self, folder: Path) -> tuple[Pool, IngestThread, Watchdog]:
        cfg = self._cfg
        limiter = self.limiter
        layout = BlockLayout(cfg.runner.num_steps, self.experience.replay.shape)
        actors = list(self.algorithm.unique_actors)
        weights = SharedWeights(actors)
        weights.publish(actors, limiter.version, self.algorithm.num_updates)
        pool = Pool(
            to_dict(cfg),
            cfg.runner.collectors,
            layout,
            weights,
            folder,
            cfg.runner.queue_blocks,
            self._num_starts,
            self.launcher,
        )
        ingest = IngestThread(pool, limiter, self._lock, self.env.device)
        watchdog = Watchdog(pool, ingest, lambda: (self._beat, self._doing), cfg.runner.stall_time)
        self.pool = pool
        self.ingest = ingest
        self._stored_before = limiter.num_stored
        total = self.progress.num_iterations * self.progress.num_transitions
        pool.start((total - limiter.num_stored) // limiter.block)
        self._window.add(self.snapshot())
        ingest.start()
        watchdog.start()
        if self.algorithm.model is not None:
            self.model_trainer = ModelTrainer(self.algorithm.model, limiter, self._lock)
            self.model_trainer.start()
        return pool, ingest, watchdog

    def _iterate(self, monitor: Monitor) -> None:
        """Learn until the iteration's transitions are stored and learned from; report and save."""
        begin = time.monotonic()
        waited = self._waited.total_s
        num_stored = (self.progress.iteration + 1) * self.progress.num_transitions
        metrics = self._learn_until(num_stored, monitor)

        assert self.ingest is not None
        self._doing = "reporting"
        with self._lock.taken():
            reports = self.ingest.reports
            self.ingest.reports = []
            self._window.add(self.snapshot())
        rewards = merge_rewards(reports, self.env.device)
        values = monitor.to_host(metrics | rewards, self.algorithm.weights)
        newest = [block.report for block in self.ingest.newest.values()]
        self.env.take_statistics(merge_statistics(newest))
        self.progress.iteration += 1
        waited_s = self._waited.total_s - waited
        update_s = max(time.monotonic() - begin - waited_s, 0.0)

        notes = {report.note for report in reports if report.note is not None}
        num_broken = sum(report.num_broken for report in reports)
        note = monitor.note_broken_worlds(num_broken, "; ".join(sorted(notes)) or None)
        metrics_on_host = values | self._window.scalars()
        model_line = health_line(metrics_on_host)
        health = self._window.lines() + (() if model_line is None else (model_line,))
        monitor.report(metrics_on_host, waited_s, update_s, note, health)
        self._doing = "saving"
        monitor.checkpoint()
        self._beat = time.monotonic()

    def _learn_until(self, num_stored: int, monitor: Monitor) -> dict[str, Tensor]:
        limiter = self.limiter
        metrics = {}
        while True:
            with self._lock.taken():
                if limiter.is_done(num_stored):
                    return metrics
                self._check_threads()
                if limiter.may_learn():
                    self._beat = time.monotonic()
                    self._doing = "learning"
                    metrics = metrics | self._learn_once()
                    self._lock.notify()
                else:
                    self._wait()
            monitor.wait()

    def _learn_once(self) -> dict[str, Tensor]:
        """Take one update; publish the weights where another version is due."""
        team = self.algorithm
        limiter = self.limiter
        try:
            team.set_progress(self.progress.share)
            metrics = team.learn_from(self.experience.replay)
            limiter.learned()
            if limiter.num_learned % self._updates_a_version == 0:
                limiter.version += 1
                assert self.pool is not None
                self.pool.weights.publish(
                    list(team.unique_actors), limiter.version, team.num_updates
                )
        except RuntimeError as error:
            words = " ".join(str(error).split())[:300]
            raise CollectionError(f"the learner died ({type(error).__name__}: {words})") from error
        return metrics

    def _wait(self) -> None:
        """Wait a little, with the lock given away."""
        self._beat = time.monotonic()
        self._doing = "waiting"
        with self._waited.running():
            self._lock.wait(_LOOK_S)

    def _check_threads(self) -> None:
        """Raise CollectionError where the ingest thread, or the thread of a learned model, died."""
        for name, thread in (
            ("the ingest thread", self.ingest),
            ("the model trainer", self.model_trainer),
        ):
            if thread is None or (thread.error is None and thread.is_alive()):
                continue
            error = thread.error
            if isinstance(error, CollectionError):
                raise error
            if error is None:
                words = "it ended"
            else:
                words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise CollectionError(f"{name} died ({words})") from error

    def check_counts(self) -> None:
        """Raise CollectionError unless every transition that was sent was received and stored;
        call it at the end.
        """
        pool = self.pool
        ingest = self.ingest
        assert pool is not None
        assert ingest is not None
        if ingest.error is not None:
            raise CollectionError(f"the ingest thread died ({ingest.error})") from ingest.error
        size = self.limiter.block
        before = self._stored_before
        sent = pool.num_sent() * size
        received = pool.num_received() * size
        stored = self.limiter.num_stored - before
        if not sent == received == stored:
            raise CollectionError(
                f"transitions were lost: {sent:,} sent, {received:,} received, {stored:,} stored"
            )
        _LOG.info(
            "Transitions: %s sent, %s received, %s stored.",
            f"{sent:,}",
            f"{received:,}",
            f"{stored:,}",
        )


def merge_rewards(reports: list[BlockReport], device: torch.device) -> dict[str, Tensor]:
    """Return means over the valid transitions of all blocks, and how many transitions are broken;
    none of no block.
    """
    if not reports:
        return {}
    total = max(sum(report.num_valid for report in reports), 1.0)
    names = reports[-1].rewards
    means = {
        name: sum(report.rewards[name] * report.num_valid for report in reports) / total
        for name in names
    }
    means["rollout/num_broken"] = sum(report.num_broken for report in reports)
    return {name: torch.tensor(value, device=device) for name, value in means.items()}
