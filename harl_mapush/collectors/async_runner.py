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
from harl_mapush.collectors.fleet import Fleet
from harl_mapush.collectors.launchers import CollectionError, Launcher
from harl_mapush.collectors.learner import ReplayLearner
from harl_mapush.collectors.pace import Pace
from harl_mapush.collectors.remote_env import RemoteEnvSpec, merge_statistics
from harl_mapush.config import RunCfg
from harl_mapush.distributed.ranks import ALONE
from harl_mapush.learning.off_policy.experience import ReplayExperience
from harl_mapush.progress import Progress
from harl_mapush.trainer import Monitor, fast_products
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
        block = self.progress.num_transitions // cfg.runner.collectors
        self.pace = Pace(self.algorithm, self.experience, block)
        self.collectors: Fleet | None = None
        self._launcher = launcher
        self._num_starts = 0  # of each collector
        self._num_left = 0  # blocks that are not requested yet
        self._waited_s = 0.0
        self._stored_s = 0.0
        self._counted: dict[str, float] = {}  # totals at the last report
        self._newest: dict[int, BlockReport] = {}  # of the last stored block, by collector
        self._reports: list[BlockReport] = []  # of the blocks stored since the last report

    def learn(self, callbacks: Sequence[Callback] = (), folder: Path | None = None) -> None:
        """Train to the end. All processes have ended on return.

        Raises, besides the errors of ``Trainer.learn``, CollectionError if collecting or learning
        cannot continue.
        """
        monitor = Monitor(self.progress, callbacks, ALONE)
        total = self.progress.num_iterations * self.progress.num_transitions
        self._num_left = (total - self.pace.num_stored) // self.pace.block
        with tempfile.TemporaryDirectory() as temporary:
            fleet = self.collectors = Fleet(
                to_dict(self._cfg),
                self.cfg.collectors,
                self._launcher,
                Path(temporary) if folder is None else folder,
                self.cfg.queue_blocks,
                self.cfg.stall_time,
                self._num_starts,
                self.algorithm.num_updates,
            )
            self._num_starts += 1
            _LOG.info("[AsyncTrainer] starts: process %d, on %s", os.getpid(), self.env.device)
            self._counted = self._totals(fleet)
            try:
                with (
                    fast_products(),
                    torch.accelerator.device_index(self.env.device.index),
                ):
                    while not self.progress.is_done:
                        self._iterate(fleet, monitor)
            finally:
                fleet.end()

    def statistics(self) -> dict[str, float]:
        """Return the collectors' latest statistics."""
        return self.env.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run. Its collectors begin new episodes."""
        return {
            "iteration": self.progress.iteration,
            "algorithm": self.algorithm.state_dict(),
            "storage": self.experience.state_dict(),
            "num_stored": self.pace.num_stored,
            "num_starts": self._num_starts,
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

    def _iterate(self, fleet: Fleet, monitor: Monitor) -> None:
        """Store and learn from an iteration's transitions. Report and save."""
        begin = time.monotonic()
        waited_before = self._waited_s
        num_stored = (self.progress.iteration + 1) * self.progress.num_transitions
        metrics = self._learn_until(num_stored, fleet, monitor)

        reports = self._reports
        self._reports = []
        rewards = merge_rewards(reports, self.env.device)
        values = monitor.to_host(metrics | rewards, self.algorithm.weights)
        self.env.take_statistics(merge_statistics(self._newest.values()))
        self.progress.iteration += 1
        waited_s = self._waited_s - waited_before
        update_s = max(time.monotonic() - begin - waited_s, 0.0)

        notes = {report.note for report in reports if report.note is not None}
        num_broken = sum(report.num_broken for report in reports)
        note = monitor.note_broken_worlds(num_broken, "; ".join(sorted(notes)) or None)
        scalars = self._scalars(fleet)
        lines = health.lines(scalars, fleet, self.pace)
        monitor.report(values | scalars, waited_s, update_s, note, lines)
        monitor.checkpoint()

    def _learn_until(self, num_stored: int, fleet: Fleet, monitor: Monitor) -> dict[str, Tensor]:
        """Store and learn until ``num_stored`` transitions are stored and no update is owed."""
        pace = self.pace
        metrics: dict[str, Tensor] = {}
        while True:
            self._num_left -= fleet.look(self._weights, self._num_left)
            while pace.may_store() and self._store(fleet):
                pass
            if pace.is_done(num_stored):
                return metrics
            if pace.may_learn():
                metrics = metrics | self._learn_once()
            else:
                start = time.monotonic()
                fleet.wait(_LOOK_S)
                self._waited_s += time.monotonic() - start
            monitor.wait()

    def _store(self, fleet: Fleet) -> bool:
        """Move one block into the replay buffer. Return whether there was one."""
        taken = fleet.take()
        if taken is None:
            return False
        start = time.monotonic()
        number, block = taken
        with torch.no_grad():
            for transition in block.transitions(self.env.device):
                self.experience.store(transition, number)
        self._stored_s += time.monotonic() - start
        self.pace.stored()
        self._reports.append(block.report)
        self._newest[number] = block.report
        return True

    def _learn_once(self) -> dict[str, Tensor]:
        """Take one update."""
        try:
            self.algorithm.set_progress(self.progress.share)
            metrics = self.algorithm.learn_from(self.experience.replay)
        except RuntimeError as error:
            words = " ".join(str(error).split())[:300]
            raise CollectionError(f"the learner died ({type(error).__name__}: {words})") from error
        self.pace.learned()
        return metrics

    def _weights(self) -> Weights:
        team = self.algorithm
        return Weights.of(list(team.unique_actors), team.num_updates)

    def _totals(self, fleet: Fleet) -> dict[str, float]:
        """Return totals by the names of their rates in TensorBoard, and the time [s]."""
        pace = self.pace
        totals = {
            "time": time.monotonic(),
            "ingest/transitions_per_s": pace.num_stored,
            "learner/updates_per_s": pace.num_learned,
            "ingest/storing": self._stored_s,
            "learner/waited": self._waited_s,
        }
        for post in fleet.posts:
            env_steps = post.num_blocks * pace.block * self.env.decision_period
            totals[f"collector{post.number}/env_steps_per_s"] = env_steps
            totals[f"collector{post.number}/waited"] = post.waited_s
        return totals

    def _scalars(self, fleet: Fleet) -> dict[str, float]:
        """Return the curves about collecting and learning since the last report."""
        pace = self.pace
        before = self._counted
        self._counted = now = self._totals(fleet)
        span_s = max(now["time"] - before["time"], 1e-9)
        rates = {name: (now[name] - before[name]) / span_s for name in now if name != "time"}
        return rates | {
            "ingest/queue": fleet.num_queued,
            "learner/update_ratio": pace.num_learned / max(pace.num_counted, 1),
            "learner/policy_lag_max": max(
                pace.algorithm.num_updates - post.version for post in fleet.posts
            ),
        }


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
