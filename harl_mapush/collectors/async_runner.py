"""The trainer with collectors: other processes collect, and the learner keeps pace with them."""

from __future__ import annotations

import logging
import os
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
from harl_mapush.collectors.ingest_thread import IngestThread
from harl_mapush.collectors.launcher import Launcher
from harl_mapush.collectors.learner import ReplayLearner
from harl_mapush.collectors.pool import CollectionError, Pool, WorkerHandle
from harl_mapush.collectors.remote_env import RemoteEnvSpec, merge_statistics
from harl_mapush.collectors.shared_memory import BlockLayout, SharedWeights
from harl_mapush.collectors.supervision.health import CollectorState, Snapshot, Window
from harl_mapush.collectors.supervision.rate_limiter import FairLock, RateLimiter, Stopwatch
from harl_mapush.collectors.supervision.watchdog import Watchdog
from harl_mapush.config import RunCfg
from harl_mapush.distributed.ranks import ALONE
from harl_mapush.learning.off_policy.experience import ReplayExperience
from harl_mapush.runner import make_progress
from harl_mapush.trainer import Monitor, matmul_precision
from mqe.config import to_dict

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.2  # longest wait of the learner before the next check for an end of the run
# Longest wait for the end of a thread; the ingest thread kills collectors and stores their blocks.
_END_S = 8.0


class AsyncRunner:
    """Trains an off-policy algorithm on the transitions of ``runner.collectors`` processes.

    An iteration ends when as many transitions are stored as an iteration of ``Runner`` collects,
    and no update is owed for them.
    """

    def __init__(
        self, env: RemoteEnvSpec, algorithm: Algorithm, cfg: RunCfg, launcher: Launcher
    ) -> None:
        """Allocate the replay buffer; ``launcher`` starts the collectors.

        ``algorithm`` must be a ``ReplayLearner``, and ``cfg`` a result of ``settled``.
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
        self._stored_before = 0  # transitions stored before the start of the collectors
        self._num_starts = 0  # earlier starts of each collector, before a resume
        self._started_at = time.monotonic()
        self._beat = time.monotonic()
        self._doing = "starting"
        self.pool: Pool | None = None
        self.ingest: IngestThread | None = None

    def learn(self, callbacks: Sequence[Callback] = (), folder: Path | None = None) -> None:
        """Train to the end; all processes and threads have ended when this returns.

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
                ingest.end(_END_S)
                pool.close()
        self.check_counts()

    def statistics(self) -> dict[str, float]:
        """Return the collectors' latest statistics."""
        return self.env.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run, whose collectors begin new episodes."""
        with self._lock.taken():
            num_starts = self._num_starts
            if self.pool is not None:
                num_starts = max(handle.num_starts for handle in self.pool.handles)
            return {
                "iteration": self.progress.iteration,
                "algorithm": self.algorithm.state_dict(),
                "storage": self.experience.state_dict(),
                "num_stored": self.limiter.num_stored,
                "num_starts": num_starts,
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
        """Return all counters of the collectors, the ingest thread and the learner."""
        limiter = self.limiter
        ingest = self.ingest
        pool = self.pool
        assert ingest is not None
        assert pool is not None
        lags = ingest.lags
        ingest.lags = []
        return Snapshot(
            time_s=time.monotonic(),
            collectors=tuple(self._collector_state(handle) for handle in pool.handles),
            num_stored=limiter.num_stored,
            queue=len(ingest.queue),
            capacity=pool.capacity,
            num_errors=pool.num_restarts,
            num_lost_episodes=pool.num_lost_episodes,
            num_warm=limiter.num_warm,
            warmup=limiter.warmup,
            num_updates=self.algorithm.num_updates,
            num_learned=limiter.num_learned,
            num_counted=limiter.num_counted,
            learner_waited_s=self._waited.total_s,
            lag_mean=sum(lags) / max(len(lags), 1),
            lag_max=max(lags, default=0),
        )

    def _collector_state(self, handle: WorkerHandle) -> CollectorState:
        assert self.ingest is not None
        numbers = handle.numbers()
        newest = self.ingest.newest.get(handle.number)
        steps_per_decision = self.env.num_envs // self.cfg.collectors * self.env.decision_period
        return CollectorState(
            env_steps=numbers.num_decisions * steps_per_decision,
            num_sent=self.limiter.block * numbers.num_sent,
            waited_s=numbers.waited_ns / 1e9,
            version=numbers.version,
            lag=0 if newest is None else self.limiter.version - newest.version,
        )

    def health(self) -> tuple[str, ...]:
        """Return a line about each process and thread."""
        self._window.add(self.snapshot())
        return self._window.lines()

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
        self._started_at = time.monotonic()
        _LOG.info("[Learner] starts: process %d, on %s", os.getpid(), self.env.device)
        total = self.progress.num_iterations * self.progress.num_transitions
        pool.start((total - limiter.num_stored) // limiter.block)
        self._window.add(self.snapshot())
        ingest.start()
        watchdog.start()
        return pool, ingest, watchdog

    def _iterate(self, monitor: Monitor) -> None:
        """Store and learn from an iteration's transitions; report and save."""
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
        monitor.report(metrics_on_host, waited_s, update_s, note, self._window.lines())
        self._doing = "saving"
        monitor.checkpoint()
        self._beat = time.monotonic()

    def _learn_until(self, num_stored: int, monitor: Monitor) -> dict[str, Tensor]:
        limiter = self.limiter
        was_warm = limiter.is_warm
        metrics = {}
        while True:
            with self._lock.taken():
                if limiter.is_warm and not was_warm:
                    was_warm = True
                    self._report_warmup()
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

    def _report_warmup(self) -> None:
        _LOG.info(
            "[Learner] the warm-up ends: %s transitions stored in %.0f s; updates begin",
            f"{len(self.experience.replay):,}",
            time.monotonic() - self._started_at,
        )

    def _learn_once(self) -> dict[str, Tensor]:
        """Take one update; publish the weights if a new version is due."""
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
        """Release the lock for a short time, and wait."""
        self._beat = time.monotonic()
        self._doing = "waiting"
        with self._waited.running():
            self._lock.wait(_LOOK_S)

    def _check_threads(self) -> None:
        """Raise CollectionError if the ingest thread died."""
        assert self.ingest is not None
        error = self.ingest.error
        if error is None and self.ingest.is_alive():
            return
        if isinstance(error, CollectionError):
            raise error
        words = "it ended"
        if error is not None:
            words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise CollectionError(f"the ingest thread died ({words})") from error

    def check_counts(self) -> None:
        """Raise CollectionError if the transitions sent, received and stored differ in number.

        To be called at the end.
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
        counts = f"{sent:,} sent, {received:,} received, {stored:,} stored"
        _LOG.info("Transitions: %s.", counts)


def merge_rewards(reports: list[BlockReport], device: torch.device) -> dict[str, Tensor]:
    """Return mean rewards over the valid transitions of all blocks, and the number of broken ones.

    Without blocks the result is empty.
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
