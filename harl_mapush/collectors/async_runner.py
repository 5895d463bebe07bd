"""The trainer with collectors: other processes collect, and the learner keeps pace with them."""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from harl_mapush.algorithms.algorithm import Algorithm
from harl_mapush.callback import Callback
from harl_mapush.collectors.collector import BlockReport
from harl_mapush.collectors.fleet import Fleet
from harl_mapush.collectors.launchers import CollectionError, FullBlock, StartWorker, start_worker
from harl_mapush.collectors.learner import ReplayLearner
from harl_mapush.collectors.remote_env import RemoteEnvSpec
from harl_mapush.config import RunCfg
from harl_mapush.distributed.ranks import ALONE
from harl_mapush.learning.off_policy.experience import ReplayExperience
from harl_mapush.learning.off_policy.replay_buffer import Transition
from harl_mapush.progress import Progress
from harl_mapush.trainer import Monitor, fast_products
from mqe.config import reason_of
from mqe.env.statistics import weighted_means

_LOOK_S = 0.02  # between two looks of a waiting learner for a full block


class AsyncRunner:
    """Trains an off-policy algorithm on the transitions of ``runner.collectors`` processes.

    An iteration stores one block for each collector, as many transitions as an iteration of
    ``Runner``. The updates for a block precede the next block.
    """

    def __init__(
        self,
        env: RemoteEnvSpec,
        algorithm: Algorithm,
        cfg: RunCfg,
        start: StartWorker = start_worker,
    ) -> None:
        """Allocate the replay buffer. ``start`` starts each collector.

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
        self.collectors: Fleet | None = None
        self._start = start
        self._num_starts = 0  # of each collector
        self._num_blocks = 0  # stored blocks with their updates, in the present iteration
        self._newest: dict[int, FullBlock] = {}  # the last stored block, by collector

    def learn(self, callbacks: Sequence[Callback] = (), folder: Path | None = None) -> None:
        """Train to the end. All processes have ended on return.

        Raises, besides the errors of ``Trainer.learn``, CollectionError if collecting or learning
        cannot continue.
        """
        monitor = Monitor(self.progress, callbacks, ALONE)
        with tempfile.TemporaryDirectory() as temporary:
            logs = Path(temporary) if folder is None else folder
            shape = self.experience.replay.shape
            fleet = Fleet(self._cfg, shape, self.algorithm, self._start, logs, self._num_starts)
            self.collectors = fleet
            self._num_starts += 1
            try:
                with fast_products(), torch.accelerator.device_index(self.env.device.index):
                    while not self.progress.is_done:
                        self._iterate(fleet, monitor)
            finally:
                fleet.end()

    def statistics(self) -> dict[str, float]:
        """Return the collectors' latest statistics."""
        return weighted_means([block.report.statistics for block in self._newest.values()])

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run. Its collectors begin new episodes."""
        return {
            "iteration": self.progress.iteration,
            "algorithm": self.algorithm.state_dict(),
            "storage": self.experience.state_dict(),
            "num_starts": self._num_starts,
            "num_blocks": self._num_blocks,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self.progress.iteration = state["iteration"]
        self.algorithm.load_state_dict(state["algorithm"])
        self.experience.load_state_dict(state["storage"])
        for ring in range(self.cfg.collectors):
            self.experience.cut(ring)
        self._num_starts = state["num_starts"]
        self._num_blocks = state.get("num_blocks", 0)  # 0.3 saved none

    def _iterate(self, fleet: Fleet, monitor: Monitor) -> None:
        """Store a block for each collector, and update after each block. Report and save."""
        begin_s = time.monotonic()
        num_updates = self.algorithm.num_updates
        waited_s = 0.0
        metrics: dict[str, Tensor] = {}
        reports: list[BlockReport] = []
        while self._num_blocks < self.cfg.collectors:
            empty_s = time.monotonic()
            self._wait_for_block(fleet, monitor)
            waited_s += time.monotonic() - empty_s
            reports.append(self._store(fleet).report)
            metrics |= self._update(fleet)
            self._num_blocks += 1

        rewards = merge_rewards(reports, self.env.device)
        values = monitor.to_host(metrics | rewards, self.algorithm.weights)
        self.progress.iteration += 1
        self._num_blocks = 0
        span_s = time.monotonic() - begin_s
        num_transitions = self.progress.num_transitions
        num_updates = self.algorithm.num_updates - num_updates
        scalars = {
            "ingest/transitions_per_s": num_transitions / span_s,
            "ingest/queue": fleet.num_queued,
            "learner/updates_per_s": num_updates / span_s,
            "learner/update_ratio": num_updates / num_transitions,
            "learner/waited": waited_s / span_s,
            "learner/policy_lag_max": self.algorithm.num_updates
            - min(post.version for post in fleet.posts),
        }
        block_env_steps = self.progress.steps_per_iteration / self.cfg.collectors
        for number, block in self._newest.items():
            scalars[f"collector{number}/env_steps_per_s"] = block_env_steps / block.cycle_s
            scalars[f"collector{number}/waited"] = block.waited_s / block.cycle_s

        notes = {report.note for report in reports if report.note is not None}
        num_broken = sum(report.num_broken for report in reports)
        note = monitor.note_broken_worlds(num_broken, "; ".join(sorted(notes)) or None)
        lines = health_lines(scalars, fleet, self.algorithm, len(self.experience.replay))
        monitor.report(values | scalars, waited_s, span_s - waited_s, note, lines)
        monitor.checkpoint()

    def _wait_for_block(self, fleet: Fleet, monitor: Monitor) -> None:
        """Receive full blocks until there is one, and check whether the run must end.

        A run ends here and not within a block's updates, so that a resumed run repeats none.
        """
        while True:
            fleet.look()
            monitor.wait()
            if fleet.num_queued:
                return
            time.sleep(_LOOK_S)

    def _store(self, fleet: Fleet) -> FullBlock:
        """Move the longest queue's oldest block into the replay buffer."""
        post = fleet.longest_queue()
        block = post.queue.popleft()
        fields = [values.to(self.env.device) for values in post.channel.block(block.number)]
        with torch.no_grad():
            for decision in zip(*fields, strict=True):
                self.experience.store(Transition(*decision), post.number)
        post.worker.free(block.number)
        self._newest[post.number] = block
        return block

    def _update(self, fleet: Fleet) -> dict[str, Tensor]:
        """Take the last block's updates in parts, one for each decision.

        After each part the collectors get its weights.
        """
        metrics: dict[str, Tensor] = {}
        for _ in range(self.cfg.num_steps):
            self.experience.num_new = self.experience.replay.shape.num_envs
            try:
                metrics |= self.algorithm.update(self.experience, self.progress.share)
            except RuntimeError as error:
                words = reason_of(error)[:300]
                raise CollectionError(
                    f"the learner died ({type(error).__name__}: {words})"
                ) from error
            fleet.exchange.publish(self.algorithm.unique_actors, self.algorithm.num_updates)
        return metrics


def merge_rewards(reports: list[BlockReport], device: torch.device) -> dict[str, Tensor]:
    """Return mean rewards over all valid transitions, and count broken transitions."""
    total = max(sum(report.num_valid for report in reports), 1.0)
    means = {
        name: sum(report.rewards[name] * report.num_valid for report in reports) / total
        for name in reports[-1].rewards
    }
    means["rollout/num_broken"] = sum(report.num_broken for report in reports)
    return {name: torch.tensor(value, device=device) for name, value in means.items()}


def health_lines(
    scalars: Mapping[str, float], fleet: Fleet, team: ReplayLearner, num_stored: int
) -> tuple[str, ...]:
    """Return a line about each collector, about storing and about the learner.

    ``scalars`` are the curves of TensorBoard, ``num_stored`` the transitions in the replay buffer.
    The lines begin as those of MAPush's asynchronous trainer.
    """
    workers = [
        f"[Worker {post.number}] Sent {post.num_transitions} transitions | "
        f"Rate {scalars.get(f'collector{post.number}/env_steps_per_s', 0.0):.1f} steps/s | "
        f"Waited {100 * scalars.get(f'collector{post.number}/waited', 0.0):.0f} % | "
        f"Policy {post.version} (lag {team.num_updates - post.version})"
        for post in fleet.posts
    ]
    return (
        *workers,
        f"[BufferFiller] Rate {scalars['ingest/transitions_per_s']:.1f}/s | "
        f"Buffer {num_stored} | Queue {fleet.num_queued}/{fleet.capacity}",
        f"[AsyncTrainer] Buffer warmup {min(num_stored, team.cfg.warmup)}/{team.cfg.warmup} | "
        f"Updates {team.num_updates} (ratio {scalars['learner/update_ratio']:.4g}) | "
        f"Waited {100 * scalars['learner/waited']:.0f} %",
    )
