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
from harl_mapush.callback import Callback
from harl_mapush.collectors import health
from harl_mapush.collectors.collector import BlockReport, Weights
from harl_mapush.collectors.launchers import CollectionError, Launcher
from harl_mapush.collectors.learner import ReplayLearner
from harl_mapush.collectors.pace import Pace
from harl_mapush.collectors.remote_env import RemoteEnvSpec, merge_statistics
from harl_mapush.collectors.supervisor import FullBlock, Supervisor
from harl_mapush.config import RunCfg
from harl_mapush.distributed.ranks import ALONE
from harl_mapush.learning.off_policy.experience import ReplayExperience
from harl_mapush.progress import Progress
from harl_mapush.trainer import Monitor, matmul_precision
from mqe.config import to_dict

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.2  # longest wait of the learner before the next check for an end of the run


class AsyncRunner:
    """Trains an off-policy algorithm on the transitions of ``runner.collectors`` processes.

    An iteration has as many transitions as an iteration of ``Runner``. It ends with all transitions
    stored and no update owed.
    """

    def __init__(
        self, env: RemoteEnvSpec, algorithm: Algorithm, cfg: RunCfg, launcher: Launcher
    ) -> None:
        """Allocate the replay buffer. ``launcher`` starts the collectors.

        ``algorithm`` must be a ``ReplayLearner``. ``cfg`` comes from ``settled``.
        """
        self._cfg = cfg
        self.cfg = cfg.runner
        self.env = env
        self.algorithm = cast(ReplayLearner, algorithm)
        self.progress = Progress.of(cfg.runner, env.num_envs, env.decision_period)
        self.experience: ReplayExperience = self.algorithm.make_rings(
            env.num_envs, cfg.runner.collectors
        )

        ratio = self.algorithm.cfg.update_ratio
        block = self.progress.num_transitions // cfg.runner.collectors
        self.pace = Pace(self.algorithm, self.experience, ratio, block, cfg.runner.max_policy_lag)
        self.collectors: Supervisor | None = None
        self._launcher = launcher
        self._updates_a_version = max(1, round(ratio * block))
        self._num_starts = 0  # earlier starts of each collector, before a resume
        self._waited_s = 0.0
        self._stored_s = 0.0
        self._rates = health.Rates()
        self._started_at = time.monotonic()
        # Report and policy version of the last stored block by collector
        self._newest: dict[int, tuple[BlockReport, int]] = {}
        # Reports and lags (versions behind the learner) of the blocks stored since the last report
        self._reports: list[BlockReport] = []
        self._lags: list[int] = []

    def learn(self, callbacks: Sequence[Callback] = (), folder: Path | None = None) -> None:
        """Train to the end. All processes and threads have ended on return.

        Raises, besides the errors of ``Trainer.learn``, CollectionError if collecting or learning
        cannot continue.
        """
        monitor = Monitor(self.progress, callbacks, ALONE)
        with tempfile.TemporaryDirectory() as temporary:
            collectors = self._start(Path(temporary) if folder is None else folder)
            try:
                with (
                    matmul_precision(self.cfg.matmul_precision),
                    torch.accelerator.device_index(self.env.device.index),
                ):
                    while not self.progress.is_done:
                        self._iterate(collectors, monitor)
            finally:
                collectors.end()
        _LOG.info("Transitions: %s stored.", f"{self.pace.num_stored:,}")

    def statistics(self) -> dict[str, float]:
        """Return the collectors' latest statistics."""
        return self.env.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run. Its collectors begin new episodes."""
        num_starts = self._num_starts
        if self.collectors is not None:
            num_starts = max(post.num_starts for post in self.collectors.posts)
        return {
            "iteration": self.progress.iteration,
            "algorithm": self.algorithm.state_dict(),
            "storage": self.experience.state_dict(),
            "num_stored": self.pace.num_stored,
            "num_starts": num_starts,
            "version": self.pace.version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self.progress.iteration = state["iteration"]
        self.algorithm.load_state_dict(state["algorithm"])
        self.experience.load_state_dict(state["storage"])
        for ring in range(self.cfg.collectors):
            self.experience.cut(ring)
        self.pace.num_stored = state["num_stored"]
        self._num_starts = state["num_starts"]
        self.pace.version = state["version"]

    def _start(self, folder: Path) -> Supervisor:
        cfg = self._cfg
        pace = self.pace
        collectors = Supervisor(
            to_dict(cfg),
            cfg.runner.collectors,
            self.env.num_envs // cfg.runner.collectors,
            self._launcher,
            folder,
            cfg.runner.queue_blocks,
            cfg.runner.stall_time,
            self._num_starts,
        )
        self.collectors = collectors
        self._started_at = time.monotonic()
        _LOG.info("[Learner] starts: process %d, on %s", os.getpid(), self.env.device)
        total = self.progress.num_iterations * self.progress.num_transitions
        collectors.begin((total - pace.num_stored) // pace.block, self._weights())
        self._rates.add(self._started_at, self._counters(collectors))
        return collectors

    def _iterate(self, collectors: Supervisor, monitor: Monitor) -> None:
        """Store and learn from an iteration's transitions. Report and save."""
        begin = time.monotonic()
        waited_before = self._waited_s
        num_stored = (self.progress.iteration + 1) * self.progress.num_transitions
        metrics = self._learn_until(num_stored, collectors, monitor)

        reports = self._reports
        self._reports = []
        self._rates.add(time.monotonic(), self._counters(collectors))
        scalars = self._scalars(collectors)
        rewards = merge_rewards(reports, self.env.device)
        values = monitor.to_host(metrics | rewards, self.algorithm.weights)
        self.env.take_statistics(merge_statistics(report for report, _ in self._newest.values()))
        self.progress.iteration += 1
        waited_s = self._waited_s - waited_before
        update_s = max(time.monotonic() - begin - waited_s, 0.0)

        notes = {report.note for report in reports if report.note is not None}
        num_broken = sum(report.num_broken for report in reports)
        note = monitor.note_broken_worlds(num_broken, "; ".join(sorted(notes)) or None)
        lines = health.lines(scalars, collectors, self.pace, self._cfg.logger.lines)
        monitor.report(values | scalars, waited_s, update_s, note, lines)
        monitor.checkpoint()

    def _learn_until(
        self, num_stored: int, collectors: Supervisor, monitor: Monitor
    ) -> dict[str, Tensor]:
        """Store and learn until ``num_stored`` transitions are stored and no update is owed."""
        pace = self.pace
        metrics: dict[str, Tensor] = {}
        while True:
            self._store_waiting(collectors)
            if pace.is_done(num_stored):
                return metrics
            if pace.may_learn():
                metrics = metrics | self._learn_once(collectors)
            else:
                start = time.monotonic()
                collectors.wait(_LOOK_S)
                self._waited_s += time.monotonic() - start
            monitor.wait()

    def _store_waiting(self, collectors: Supervisor) -> None:
        """Store waiting blocks as long as the pace allows it."""
        pace = self.pace
        while True:
            pace.oldest_version = collectors.oldest_version()
            if not pace.may_store():
                return
            full = collectors.take()
            if full is None:
                return
            self._store(full)

    def _store(self, full: FullBlock) -> None:
        """Move one block into the replay buffer."""
        start = time.monotonic()
        if full.starts_anew:
            self.experience.cut(full.collector)
        with torch.no_grad():
            for transition in full.block.transitions(self.env.device):
                self.experience.store(transition, full.collector)
        self._stored_s += time.monotonic() - start
        was_warm = self.pace.num_counted > 0
        self.pace.stored()
        if self.pace.is_warm and not was_warm:
            self._report_warmup()
        self._reports.append(full.block.report)
        self._lags.append(self.pace.version - full.version)
        self._newest[full.collector] = (full.block.report, full.version)

    def _learn_once(self, collectors: Supervisor) -> dict[str, Tensor]:
        """Take one update. Publish the weights if a new version is due."""
        pace = self.pace
        try:
            self.algorithm.set_progress(self.progress.share)
            metrics = self.algorithm.learn_from(self.experience.replay)
            pace.learned()
            if pace.num_learned % self._updates_a_version == 0:
                pace.version += 1
                collectors.weights = self._weights()
        except RuntimeError as error:
            words = " ".join(str(error).split())[:300]
            raise CollectionError(f"the learner died ({type(error).__name__}: {words})") from error
        return metrics

    def _weights(self) -> Weights:
        team = self.algorithm
        return Weights.of(list(team.unique_actors), self.pace.version, team.num_updates)

    def _report_warmup(self) -> None:
        _LOG.info(
            "[Learner] the warm-up ends: %s transitions stored in %.0f s; updates begin",
            f"{len(self.experience.replay):,}",
            time.monotonic() - self._started_at,
        )

    def _counters(self, collectors: Supervisor) -> dict[str, float]:
        """Return totals by the names of their rates, in TensorBoard."""
        pace = self.pace
        counters = {
            "ingest/transitions_per_s": pace.num_stored,
            "learner/updates_per_s": pace.num_learned,
            "ingest/storing": self._stored_s,
            "learner/waited": self._waited_s,
        }
        for post in collectors.posts:
            env_steps = post.num_blocks * pace.block * self.env.decision_period
            counters[f"collector{post.number}/env_steps_per_s"] = env_steps
            counters[f"collector{post.number}/waited"] = post.waited_s
        return counters

    def _scalars(self, collectors: Supervisor) -> dict[str, float]:
        """Return the run's curves about collecting and learning."""
        pace = self.pace
        lags = self._lags
        self._lags = []
        scalars = self._rates.by_name() | {
            "ingest/queue": len(collectors.queue),
            "ingest/errors": collectors.num_restarts,
            "learner/update_ratio": pace.num_learned / max(pace.num_counted, 1),
            "learner/policy_lag_mean": sum(lags) / max(len(lags), 1),
            "learner/policy_lag_max": max(lags, default=0),
        }
        for post in collectors.posts:
            _, version = self._newest.get(post.number, (None, pace.version))
            scalars[f"collector{post.number}/policy_lag"] = pace.version - version
        return scalars


def merge_rewards(reports: list[BlockReport], device: torch.device) -> dict[str, Tensor]:
    """Return mean rewards over all valid transitions, and the number of broken transitions.

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
