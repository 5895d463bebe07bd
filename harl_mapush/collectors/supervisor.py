"""Supervisors: a thread for each collector starts it, requests blocks, and replaces it.

Blocks go to the learner through one queue. Each collector has a limit on its blocks in work
and in the queue. Beyond it, the supervisor waits. Nothing is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harl_mapush.collectors.collector import (
    COLLECTING,
    READY,
    STARTING,
    Block,
    Identity,
    Weights,
)
from harl_mapush.collectors.launchers import (
    Launcher,
    Worker,
    WorkerGoneError,
    last_line,
)

MOST_DEATHS = 3  # deaths of a collector in a row, without a block in between, that end the run
_LOOK_S = 0.2  # between two checks for the end of the run
# Time that every collector has for its start: kernels are compiled, and the machine may be busy.
_START_S = 600.0
_END_S = 3.0  # time of the collectors to end after the request
_LOG = logging.getLogger(__name__)


class CollectionError(RuntimeError):
    """Collecting cannot continue. The message has the reason. The run ends after saving."""


class FullBlock(NamedTuple):
    """A block in the queue."""

    collector: int
    version: int  # of the policy that collected it
    starts_anew: bool  # whether the collector was restarted before it
    block: Block


class Collectors:
    """The K collectors of a run in the learner's process."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        num_collectors: int,
        num_worlds: int,
        launcher: Launcher,
        logs: Path,
        queue_blocks: int,
        stall_s: float,
        num_starts: int = 0,
    ) -> None:
        """Prepare collectors with ``num_worlds`` each. ``queue_blocks`` blocks of each may wait.

        ``settings`` are plain values. ``logs`` is the folder for the collectors' output. A
        collector without a sign of life for ``stall_s`` [s] is reported, and restarted after twice
        the time. ``num_starts`` is the number of earlier starts of the run's collectors.
        """
        logs.mkdir(exist_ok=True)
        self.settings = settings
        self.launcher = launcher
        self.num_worlds = num_worlds
        self.stall_s = stall_s
        self.queue: deque[FullBlock] = deque()
        self.capacity = num_collectors * (queue_blocks + 1)
        self.weights: Weights | None = None  # the newest version
        self.is_ending = threading.Event()
        self.error: CollectionError | None = None
        self._arrival = threading.Event()
        self._num_left = 0  # blocks that are not requested yet
        self._lock = threading.Lock()
        self.supervisors = [
            Supervisor(self, Identity(i, num_collectors), logs / f"{i}.txt", queue_blocks + 1)
            for i in range(num_collectors)
        ]
        for supervisor in self.supervisors:
            supervisor.num_starts = num_starts

    @property
    def num_restarts(self) -> int:
        """Number of deaths."""
        return sum(supervisor.num_deaths for supervisor in self.supervisors)

    @property
    def num_lost_episodes(self) -> int:
        """Number of unfinished episodes that died with collectors."""
        return sum(supervisor.num_lost_episodes for supervisor in self.supervisors)

    def start(self, num_blocks: int, weights: Weights) -> None:
        """Start all collectors. Together they collect ``num_blocks``, by ``weights`` at first."""
        self._num_left = num_blocks
        self.weights = weights
        for supervisor in self.supervisors:
            supervisor.start()

    def wait(self, timeout_s: float) -> None:
        """Wait for a block or an error, at most ``timeout_s``."""
        self._arrival.wait(timeout_s)
        self._arrival.clear()

    def check(self) -> None:
        """Raise CollectionError if collecting cannot continue."""
        if self.error is not None:
            raise self.error

    def take(self) -> FullBlock | None:
        """Return the oldest block in the queue, None without any."""
        return self.queue.popleft() if self.queue else None

    def release(self, full: FullBlock) -> None:
        """Let the collector of a stored block fill another one."""
        supervisor = self.supervisors[full.collector]
        supervisor.versions.popleft()
        supervisor.room.release()

    def oldest_version(self) -> int | None:
        """Return the oldest policy version among blocks in work and in the queue."""
        versions = [list(supervisor.versions) for supervisor in self.supervisors]
        return min((several[0] for several in versions if several), default=None)

    def end(self) -> None:
        """End all collectors, if necessary by force."""
        self.is_ending.set()
        deadline = time.monotonic() + _END_S + 2.0
        for supervisor in self.supervisors:
            if supervisor.is_alive():
                supervisor.join(max(deadline - time.monotonic(), 0.1))
        for supervisor in self.supervisors:
            if supervisor.is_alive() and supervisor.worker is not None:
                supervisor.worker.end(0.0)

    def deliver(self, full: FullBlock) -> None:
        """Put a block into the queue."""
        self.queue.append(full)
        self._arrival.set()

    def fail(self, error: CollectionError) -> None:
        """Make the learner end the run."""
        self.error = self.error or error
        self._arrival.set()

    def take_request(self) -> bool:
        """Return whether one more block is to be requested, and count it."""
        with self._lock:
            if self._num_left < 1:
                return False
            self._num_left -= 1
            return True

    def give_back_request(self) -> None:
        """Undo ``take_request``, since the collector died."""
        with self._lock:
            self._num_left += 1


class Supervisor(threading.Thread):
    """Keeps one collector at work."""

    def __init__(self, team: Collectors, identity: Identity, log: Path, num_blocks: int) -> None:
        """Supervise a collector with at most ``num_blocks`` blocks in work or in the queue."""
        super().__init__(name=f"supervisor {identity.number}", daemon=True)
        self.worker: Worker | None = None
        self.room = threading.Semaphore(num_blocks)
        self.versions: deque[int] = deque()  # policies of the blocks that are not stored yet
        self.number = identity.number
        self.version = 0  # of the collector's policy
        self.num_starts = 0
        self.num_deaths = 0
        self.num_lost_episodes = 0
        self.num_blocks = 0  # received
        self.waited_s = 0.0  # time without room in the queue
        self.is_ready = False  # whether the collector has built its worlds
        self.starts_anew = True  # whether it has not sent a block since its start
        self._team = team
        self._num_collectors = identity.num_collectors
        self._log = log
        self._deaths_in_a_row = 0
        self._has_request = False  # whether a block is in work

    def run(self) -> None:
        """Employ one collector after the other, until the run ends."""
        try:
            while True:
                self._employ()
        except _EndingError:
            return
        except CollectionError as error:
            self._team.fail(error)
        except Exception as error:
            words = " ".join(str(error).split())[:300]
            cause = f"{type(error).__name__}: {words}"
            self._team.fail(CollectionError(f"{self.describe()} has no supervisor ({cause})"))

    def describe(self) -> str:
        """Return the collector's number and process, as words."""
        process = "no process" if self.worker is None else self.worker.describe()
        return f"Collector {self.number} ({process})"

    def _employ(self) -> None:
        """Start a collector and request blocks until it dies."""
        team = self._team
        identity = Identity(self.number, self._num_collectors, self.num_starts)
        worker = team.launcher.start(team.settings, identity, self._log)
        self.worker = worker
        self.num_starts += 1
        _LOG.info("[Collector %d] starts: %s, log %s", self.number, worker.describe(), self._log)
        self.starts_anew = True
        try:
            self._next(worker, _START_S)
            self.is_ready = True
            while True:
                weights = self._turn()
                worker.send(weights)
                block = self._next(worker, 0.0)
                assert isinstance(block, Block)
                self.num_blocks += 1
                self._deaths_in_a_row = 0
                team.deliver(FullBlock(self.number, weights.version, self.starts_anew, block))
                self.starts_anew = False
                self._has_request = False
        except WorkerGoneError as error:
            self._bury(worker, str(error))
        finally:
            worker.end(_END_S)
            self.is_ready = False

    def _turn(self) -> Weights:
        """Wait for room in the queue and for a block to request. Return the newest weights."""
        start = time.monotonic()
        while not self.room.acquire(timeout=_LOOK_S):
            start = self._count_wait(start)
        while not self._team.take_request():
            self._team.is_ending.wait(_LOOK_S)
            start = self._count_wait(start)
        self._count_wait(start)
        weights = self._team.weights
        assert weights is not None
        self.version = weights.version
        self.versions.append(weights.version)
        self._has_request = True
        return weights

    def _count_wait(self, start: float) -> float:
        """Count a wait since ``start`` and return the present time. Raise at the end of the run."""
        now = time.monotonic()
        self.waited_s += now - start
        if self._team.is_ending.is_set():
            raise _EndingError
        return now

    def _next(self, worker: Worker, least_s: float) -> Block | None:
        """Return the next block, or None for a collector that has started. Report a long silence.

        After twice the stall time, at least ``least_s``, the collector is ended.
        """
        stall_s = self._team.stall_s
        activity = STARTING if least_s else COLLECTING
        since = time.monotonic()
        is_reported = False
        while True:
            if self._team.is_ending.is_set():
                raise _EndingError
            message = worker.receive(_LOOK_S)
            if isinstance(message, Block):
                return message
            if message == READY:
                return None
            now = time.monotonic()
            if message is not None:
                activity = message
                since = now
                is_reported = False
            idle_s = now - since
            if idle_s >= stall_s and not is_reported and activity != STARTING:
                is_reported = True
                _LOG.warning(
                    "Note: %s has made no progress for %.0f s while %s. Its last line: %s. Its "
                    "stack: %s",
                    self.describe(),
                    idle_s,
                    activity,
                    last_line(self._log),
                    worker.stack(),
                )
            if idle_s >= max(2 * stall_s, least_s):
                _LOG.warning("Note: %s is killed after %.0f s.", self.describe(), idle_s)
                raise WorkerGoneError("killed, since it made no progress")

    def _bury(self, worker: Worker, cause: str) -> None:
        """Report a dead collector. Raise CollectionError if no other takes its place."""
        worker.end(0.0)
        self.num_deaths += 1
        self._deaths_in_a_row += 1
        if self._has_request:
            self._has_request = False
            self.versions.pop()
            self.room.release()
            self._team.give_back_request()
        if self.is_ready:
            self.num_lost_episodes += self._team.num_worlds
        reason = self._team.launcher.problem()
        if reason is not None:
            raise CollectionError(reason)
        problem = f"{self.describe()} died ({cause}); its last line: {last_line(self._log)}"
        if self._deaths_in_a_row >= MOST_DEATHS:
            raise CollectionError(
                f"{problem}; it died {self._deaths_in_a_row} times in a row without a block in "
                "between"
            )
        _LOG.warning(
            "Note: %s. Its unfinished episodes are lost (%d in all so far), and it is restarted.",
            problem,
            self._team.num_lost_episodes,
        )


class _EndingError(Exception):
    """The run ends."""
