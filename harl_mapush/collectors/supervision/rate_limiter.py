"""The pace of storing and learning: the rule which of the two may continue.

The learner owes ``update_ratio`` updates for every transition that is stored once the warm-up is
over. It waits while it owes less than one. Storing waits while the learner owes as many as a block
brings, so the queue fills up and the collectors wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harl_mapush.collectors.learner import ReplayLearner
from harl_mapush.learning.off_policy.experience import ReplayExperience


class FairLock:
    """A lock that a waiting thread gets next, so the learner cannot starve the ingest thread."""

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._changed = threading.Condition(threading.Lock())

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the lock."""
        with self._next:
            self._changed.acquire()
        try:
            yield
        finally:
            self._changed.release()

    def wait(self, timeout_s: float) -> None:
        """Release the lock until the other thread calls ``notify``, or the time is over."""
        self._changed.wait(timeout_s)

    def notify(self) -> None:
        """Wake all waiting threads."""
        self._changed.notify_all()


@dataclass
class RateLimiter:
    """The counts of stored and learned transitions, and the rule between the two."""

    algorithm: ReplayLearner
    experience: ReplayExperience
    ratio: float  # updates per transition
    block: int  # transitions of a block
    max_policy_lag: int  # versions
    num_stored: int = 0  # transitions since the start of the run
    num_counted: int = 0  # stored transitions after the warm-up, in this process
    num_learned: int = 0  # updates in this process
    version: int = 0  # of the published weights
    oldest_version: int | None = None  # oldest policy of the blocks that are not stored yet
    is_open: bool = False  # whether storing never waits, as at the end of the run

    @property
    def num_warm(self) -> int:
        """Number of stored transitions, at most those of the warm-up."""
        return min(len(self.experience.replay), self.warmup)

    @property
    def warmup(self) -> int:
        """Number of transitions before the first update."""
        return max(self.algorithm.cfg.warmup, 1)

    @property
    def is_warm(self) -> bool:
        """Whether the warm-up is over."""
        return len(self.experience.replay) >= self.warmup

    @property
    def lags(self) -> bool:
        """Whether one more version would make a transition that is not stored yet too old."""
        if self.oldest_version is None:
            return False
        return self.version - self.oldest_version >= self.max_policy_lag

    def may_learn(self) -> bool:
        """Return whether an update is due and keeps all lags within ``max_policy_lag``."""
        return self.is_warm and self.algorithm.num_owed >= 1.0 and not self.lags

    def is_done(self, num_stored: int) -> bool:
        """Return whether ``num_stored`` transitions are stored and their updates done."""
        beyond = self.num_stored - num_stored
        if beyond < 0:
            return False
        return not self.is_warm or self.algorithm.num_owed < 1.0 + self.ratio * beyond

    def may_store(self) -> bool:
        """Return whether a block may be stored.

        It may if the learner owes fewer updates than a block brings, or if it waits for the block.
        """
        owes_little = self.algorithm.num_owed < max(1.0, self.ratio * self.block)
        return owes_little or self.is_open or not self.is_warm or self.lags

    def stored(self) -> None:
        """Count a stored block."""
        self.num_stored += self.block
        self.experience.num_new = 0
        if self.is_warm:
            self.num_counted += self.block
            self.algorithm.num_owed += self.ratio * self.block

    def learned(self) -> None:
        """Count an update."""
        self.num_learned += 1
        self.algorithm.num_owed -= 1.0


class Stopwatch:
    """Adds up waiting times."""

    def __init__(self) -> None:
        self.total_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure the time of the block of code inside."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.total_s += time.monotonic() - start
