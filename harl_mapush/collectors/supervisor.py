"""The supervisor: a thread that starts collectors, requests blocks and replaces dead collectors.

Blocks go to the learner through one queue. Each collector has a limit on its blocks in progress and
in the queue. At the limit the collector waits. Nothing is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harl_mapush.collectors.collector import COLLECTING, READY, STARTING, Block, Identity, Weights
from harl_mapush.collectors.launchers import (
    CollectionError,
    Launcher,
    Worker,
    WorkerGoneError,
    last_line,
)
from mqe.config import ConfigError

MOST_DEATHS = 3  # deaths of a collector in a row, without a block in between, that end the run
_ROUND_S = 0.05  # longest time between two looks at the collectors
# Time that every collector has for its start: kernels are compiled, and the machine may be busy.
_START_S = 600.0
_REFUSED = "mqe.config.ConfigError: "  # start of a last line about settings of the worlds
_END_S = 3.0  # time of the collectors to end after the request
_LOG = logging.getLogger(__name__)


class FullBlock(NamedTuple):
    """A block in the queue."""

    collector: int
    version: int  # of the policy that collected it
    starts_anew: bool  # whether the collector was restarted before it
    block: Block


@dataclass
class Post:
    """One collector's position in a run: its present worker, its progress and its counters."""

    number: int
    log: Path
    num_starts: int
    worker: Worker | None = None
    is_ready: bool = False  # whether the worker has built its worlds
    starts_anew: bool = True  # whether the worker has not sent a block yet
    in_work: int | None = None  # policy version of the requested block
    version: int = 0  # of the latest policy
    activity: str = STARTING
    sign_s: float = 0.0  # time of the last sign of life
    is_reported: bool = False  # whether the present silence was reported
    waited_s: float = 0.0  # time without room in the queue
    num_blocks: int = 0  # received
    num_deaths: int = 0
    num_deaths_in_a_row: int = 0
    num_lost_episodes: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether the worker builds its worlds or collects a block."""
        return not self.is_ready or self.in_work is not None

    def describe(self) -> str:
        """Return the collector's number and process, as words."""
        process = "no process" if self.worker is None else self.worker.describe()
        return f"Collector {self.number} ({process})"

    def sign(self, activity: str) -> None:
        """Note a sign of life."""
        self.activity = activity
        self.sign_s = time.monotonic()
        self.is_reported = False


class Supervisor(threading.Thread):
    """Keeps the K collectors of a run working, in the learner's process."""

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
        this time. ``num_starts`` is the number of earlier starts of the run's collectors.
        """
        super().__init__(name="supervisor", daemon=True)
        logs.mkdir(exist_ok=True)
        self.posts = [Post(i, logs / f"{i}.txt", num_starts) for i in range(num_collectors)]
        self.queue: deque[FullBlock] = deque()
        self.capacity = num_collectors * (queue_blocks + 1)
        self.weights: Weights | None = None  # the newest version
        self._settings = settings
        self._num_worlds = num_worlds
        self._launcher = launcher
        self._most_blocks = queue_blocks + 1  # of a collector, in work and in the queue
        self._stall_s = stall_s
        self._num_left = 0  # blocks that are not requested yet
        self._error: CollectionError | ConfigError | None = None
        self._arrival = threading.Event()
        self._is_ending = threading.Event()

    @property
    def num_restarts(self) -> int:
        """Number of deaths."""
        return sum(post.num_deaths for post in self.posts)

    @property
    def num_lost_episodes(self) -> int:
        """Number of unfinished episodes that died with collectors."""
        return sum(post.num_lost_episodes for post in self.posts)

    # The learner's thread

    def begin(self, num_blocks: int, weights: Weights) -> None:
        """Start all collectors. Together they collect ``num_blocks``, with ``weights`` at first."""
        self._num_left = num_blocks
        self.weights = weights
        _LOG.info("[Ingest] starts: thread %s, room for %d blocks", self.name, self.capacity)
        self.start()

    def wait(self, timeout_s: float) -> None:
        """Wait for a block or an error, at most ``timeout_s``."""
        self._arrival.wait(timeout_s)
        self._arrival.clear()

    def take(self) -> FullBlock | None:
        """Return the oldest block in the queue, None without any.

        Raises CollectionError if collecting cannot continue, ConfigError if collectors refuse the
        settings of their worlds.
        """
        if self._error is not None:
            raise self._error
        return self.queue.popleft() if self.queue else None

    def oldest_version(self) -> int | None:
        """Return the oldest policy version among blocks in progress and in the queue."""
        # A finished block enters the queue before it leaves the work.
        versions = [post.in_work for post in self.posts]
        versions += [full.version for full in list(self.queue)]
        return min((version for version in versions if version is not None), default=None)

    def end(self) -> None:
        """End all collectors, if necessary by force."""
        self._is_ending.set()
        self.join(_END_S + 2.0)
        if self.is_alive():
            self._end_workers(0.0)

    # The supervisor's thread

    def run(self) -> None:
        """Serve the collectors in turn until the run ends."""
        try:
            while not self._is_ending.is_set():
                for post in self.posts:
                    self._look_after(post)
                self._wait_for_messages()
        except (CollectionError, ConfigError) as error:
            self._error = error
        except Exception as error:
            words = " ".join(str(error).split())[:300]
            cause = f"{type(error).__name__}: {words}"
            self._error = CollectionError(f"the supervisor of the collectors failed ({cause})")
        finally:
            self._arrival.set()
            self._end_workers(_END_S)

    def _look_after(self, post: Post) -> None:
        """Start a collector, receive a message, or request a block."""
        worker = post.worker or self._employ(post)
        try:
            message = worker.receive()
            if isinstance(message, Block):
                self._deliver(post, message)
            elif message == READY:
                post.is_ready = True
                post.sign(READY)
            elif message is not None:
                post.sign(message)
            elif post.is_busy:
                self._check_life(post, worker)
            if not post.is_busy:
                self._request(post, worker)
        except WorkerGoneError as error:
            self._bury(post, worker, str(error))

    def _wait_for_messages(self) -> None:
        """Wait for a message of a busy collector."""
        busy = [post.worker for post in self.posts if post.is_busy and post.worker is not None]
        if busy:
            self._launcher.wait(busy, _ROUND_S)
        else:
            self._is_ending.wait(_ROUND_S)

    def _employ(self, post: Post) -> Worker:
        identity = Identity(post.number, len(self.posts), post.num_starts)
        post.worker = worker = self._launcher.start(self._settings, identity, post.log)
        post.num_starts += 1
        post.is_ready = False
        post.starts_anew = True
        post.sign(STARTING)
        process = worker.describe()
        _LOG.info("[Collector %d] starts: %s, log %s", post.number, process, post.log)
        return worker

    def _request(self, post: Post, worker: Worker) -> None:
        """Request a block from an idle collector, if there is room. Otherwise count its wait."""
        now = time.monotonic()
        post.waited_s += now - post.sign_s
        post.sign_s = now
        num_queued = sum(full.collector == post.number for full in list(self.queue))
        if self._num_left < 1 or num_queued >= self._most_blocks:
            return
        weights = self.weights
        assert weights is not None
        self._num_left -= 1
        post.version = weights.version
        post.in_work = weights.version
        post.sign(COLLECTING)
        worker.send(weights)

    def _deliver(self, post: Post, block: Block) -> None:
        """Put a block into the queue."""
        assert post.in_work is not None
        self.queue.append(FullBlock(post.number, post.in_work, post.starts_anew, block))
        post.in_work = None
        post.starts_anew = False
        post.num_blocks += 1
        post.num_deaths_in_a_row = 0
        post.sign(READY)
        self._arrival.set()

    def _check_life(self, post: Post, worker: Worker) -> None:
        """Report a long silence. After twice the stall time, end the collector.

        A start may take longer.
        """
        idle_s = time.monotonic() - post.sign_s
        if idle_s >= self._stall_s and not post.is_reported and post.activity != STARTING:
            post.is_reported = True
            _LOG.warning(
                "Note: %s has made no progress for %.0f s while %s. Its last line: %s. Its "
                "stack: %s",
                post.describe(),
                idle_s,
                post.activity,
                last_line(post.log),
                worker.stack(),
            )
        if idle_s >= max(2 * self._stall_s, 0.0 if post.is_ready else _START_S):
            _LOG.warning("Note: %s is killed after %.0f s.", post.describe(), idle_s)
            raise WorkerGoneError("killed, since it made no progress")

    def _bury(self, post: Post, worker: Worker, cause: str) -> None:
        """Report a dead collector.

        Raise CollectionError after too many deaths in a row, ConfigError for refused settings.
        """
        worker.end(0.0)
        line = last_line(post.log)
        if not post.is_ready and line.startswith(_REFUSED):
            raise ConfigError(line.removeprefix(_REFUSED))
        problem = f"{post.describe()} died ({cause}); its last line: {line}"
        post.worker = None
        post.num_deaths += 1
        post.num_deaths_in_a_row += 1
        if post.in_work is not None:
            post.in_work = None
            self._num_left += 1
        if post.is_ready:
            post.num_lost_episodes += self._num_worlds
        if post.num_deaths_in_a_row >= MOST_DEATHS:
            raise CollectionError(
                f"{problem}; it died {post.num_deaths_in_a_row} times in a row without a block in "
                "between"
            )
        _LOG.warning(
            "Note: %s. Its unfinished episodes are lost (%d in all so far), and it is restarted.",
            problem,
            self.num_lost_episodes,
        )

    def _end_workers(self, timeout_s: float) -> None:
        workers = [post.worker for post in self.posts if post.worker is not None]
        if workers:
            with ThreadPoolExecutor(len(workers)) as pool:
                list(pool.map(lambda worker: worker.end(timeout_s), workers))
