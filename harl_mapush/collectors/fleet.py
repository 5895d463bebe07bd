"""The collectors of a run, as the learner sees them: full blocks, and the end of the run if a
collector dies or hangs.

A collector without a free block waits. Nothing is dropped.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from harl_mapush.collectors.collector import Identity
from harl_mapush.collectors.exchange import Channel, Exchange
from harl_mapush.collectors.launchers import (
    CollectionError,
    FullBlock,
    StartWorker,
    Worker,
    WorkerGoneError,
    last_line,
)
from harl_mapush.collectors.learner import ReplayLearner
from harl_mapush.config import RunCfg
from harl_mapush.learning.off_policy.replay_buffer import ReplayShape
from mqe.config import ConfigError, to_dict

# Time that every collector has for its start: kernels are compiled, and the machine may be busy.
_START_S = 600.0
_REFUSED = "mqe.config.ConfigError: "  # start of a last line about settings of the worlds


@dataclass
class Post:
    """One collector: its worker, its memory, its progress and its counters."""

    number: int
    log: Path
    worker: Worker
    channel: Channel
    queue: deque[FullBlock] = field(default_factory=deque)
    num_decisions: int = 0  # at the last look
    sign_s: float = field(default_factory=time.monotonic)  # time of the last sign of life

    @property
    def version(self) -> int:
        """Number of updates in the collector's policy."""
        return int(self.channel.counts[1])

    @property
    def num_transitions(self) -> int:
        """Number of collected transitions."""
        return self.num_decisions * self.channel.blocks.done.shape[-1]

    @property
    def is_full(self) -> bool:
        """Whether the collector waits, since all its blocks are in the queue."""
        return len(self.queue) == len(self.channel.blocks.done)


class Fleet:
    """A run's K collectors."""

    def __init__(
        self,
        cfg: RunCfg,
        shape: ReplayShape,
        team: ReplayLearner,
        start: StartWorker,
        logs: Path,
        num_starts: int = 0,
    ) -> None:
        """Start a run's collectors, each by ``start``. They act by the weights in ``team``.

        ``shape`` are the replay buffer's sizes, ``logs`` is the folder for the collectors' output,
        and ``num_starts`` counts the run's earlier starts.
        """
        logs.mkdir(exist_ok=True)
        runner = cfg.runner
        num_blocks = runner.queue_blocks + 1  # one is in work
        self.exchange = Exchange(
            shape, runner.num_steps, num_blocks, team.unique_actors, team.num_updates
        )
        self.capacity = runner.collectors * num_blocks
        self._stall_s = runner.stall_time
        self.posts: list[Post] = []
        try:
            for number in range(runner.collectors):
                identity = Identity(number, runner.collectors, num_starts)
                channel = self.exchange.channel(number)
                log = logs / f"{number}.txt"
                worker = start(to_dict(cfg), identity, channel, log)
                self.posts.append(Post(number, log, worker, channel))
                for block in range(num_blocks):
                    worker.free(block)
        except BaseException:
            self.end()  # those that have started
            raise

    @property
    def num_queued(self) -> int:
        """Number of full blocks in all queues."""
        return sum(len(post.queue) for post in self.posts)

    def look(self) -> None:
        """Queue all full blocks, and check each collector's progress.

        Raises CollectionError if collecting cannot continue, ConfigError if a collector refuses the
        settings for its worlds.
        """
        for post in self.posts:
            try:
                while (block := post.worker.receive()) is not None:
                    post.queue.append(block)
            except WorkerGoneError as error:
                raise self._end_of(post, f"died ({error})") from None
            self._check_progress(post)

    def longest_queue(self) -> Post:
        """Return the collector with the largest number of full blocks."""
        return max(self.posts, key=lambda post: len(post.queue))

    def end(self) -> None:
        """End all collectors."""
        for post in self.posts:
            post.worker.end()

    def _check_progress(self, post: Post) -> None:
        """Raise CollectionError if a collector with free blocks is silent for too long."""
        now = time.monotonic()
        num_decisions = int(post.channel.counts[0])
        if post.is_full or num_decisions != post.num_decisions:
            post.sign_s = now
            post.num_decisions = num_decisions

        is_built = num_decisions >= 0
        silent_s = now - post.sign_s
        if silent_s >= (self._stall_s if is_built else _START_S):
            activity = "collecting" if is_built else "building its worlds"
            raise self._end_of(post, f"has made no progress for {silent_s:.0f} s while {activity}")

    def _end_of(self, post: Post, fate: str) -> Exception:
        """Return the error for a collector's ``fate``."""
        post.worker.end()
        line = last_line(post.log)
        if int(post.channel.counts[0]) < 0 and line.startswith(_REFUSED):
            return ConfigError(line.removeprefix(_REFUSED))
        return CollectionError(
            f"collector {post.number} ({post.worker.describe()}) {fate}; its last line: {line}"
        )
