"""How storing and learning keep pace with each other: which may continue, and which has to wait.

The learner owes ``update_ratio`` updates for every transition that is stored once the warm-up is
over. It waits while it owes less than one. Storing waits while the learner owes as much as a block
brings, so that the queue fills up and the collectors wait.
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
    """A lock that is handed over to whoever waits for it, so the learner cannot starve the
    ingest thread.
    """

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
        """Release the lock until the other side has changed something."""
        self._changed.wait(timeout_s)

    def notify(self) -> None:
        """Wake whoever waits."""
        self._changed.notify_all()


@dataclass
class RateLimiter:
    """What is stored and learned, and the rule between the two."""

    algorithm: ReplayLearner
    experience: ReplayExperience
    ratio: float  # updates a transition
    block: int  # transitions
    max_policy_lag: int  # versions
    num_stored: int = 0  # transitions, since the start of the run
    num_counted: int = 0  # of these, those that updates are owed for; in this process
    num_learned: int = 0  # updates in this process
    version: int = 0  # of the weights that collectors get
    oldest_version: int | None = None  # behind what is not stored yet
    is_open: bool = False  # nothing has to wait any more: the run ends

    @property
    def num_warm(self) -> int:
        """Transitions in the replay, of those that the warm-up takes."""
        return min(len(self.experience.replay), self.warmup)

    @property
    def warmup(self) -> int:
        """Transitions before the first update."""
        return max(self.algorithm.cfg.warmup, 1)

    @property
    def is_warm(self) -> bool:
        """Return whether the warm-up is over."""
        return len(self.experience.replay) >= self.warmup

    @property
    def lags(self) -> bool:
        """Return whether another version would make a transition that is on its way too old."""
        return (
            self.oldest_version is not None
            and self.version - self.oldest_version >= self.max_policy_lag
        )

    def may_learn(self) -> bool:
        """Return whether an update is due, and leaves no transition on its way older than
        ``max_policy_lag``.
        """
        return self.is_warm and self.algorithm.num_owed >= 1.0 and not self.lags

    def is_done(self, num_stored: int) -> bool:
        """Return whether ``num_stored`` transitions are stored, and no whole update is owed for
        these.
        """
        beyond = self.num_stored - num_stored
        return beyond >= 0 and (
            not self.is_warm or self.algorithm.num_owed < 1.0 + self.ratio * beyond
        )

    def may_store(self) -> bool:
        """Return whether another block may be stored: the learner owes less than one brings, or
        waits for it.
        """
        owes_little = self.algorithm.num_owed < max(1.0, self.ratio * self.block)
        return owes_little or self.is_open or not self.is_warm or self.lags

    def stored(self) -> None:
        """Count a block."""
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
    """Adds up the time that one side waited."""

    def __init__(self) -> None:
        self.total_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what happens inside."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.total_s += time.monotonic() - start
