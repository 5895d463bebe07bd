"""The collectors of a run, as the learner sees them: requests, blocks, and the end of the run if a
collector dies or hangs.

Each collector has a limit on its blocks in progress and in the queue. At the limit the collector
waits. Nothing is dropped.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harl_mapush.collectors.collector import COLLECTING, READY, STARTING, Block, Identity, Weights
from harl_mapush.collectors.launchers import (
    CollectionError,
    Launcher,
    Worker,
    WorkerGoneError,
    last_line,
)
from mqe.config import ConfigError

# Time that every collector has for its start: kernels are compiled, and the machine may be busy.
_START_S = 600.0
_REFUSED = "mqe.config.ConfigError: "  # start of a last line about settings of the worlds
_END_S = 3.0  # time of the collectors to end after the request
_LOG = logging.getLogger(__name__)


@dataclass
class Post:
    """One collector of a run: its worker, its progress and its counters."""

    number: int
    log: Path
    worker: Worker
    is_ready: bool = False  # whether the worker has built its worlds
    is_collecting: bool = False  # whether a block is requested
    version: int = 0  # number of updates of the latest policy
    activity: str = STARTING
    sign_s: float = field(default_factory=time.monotonic)  # time of the last sign of life
    waited_s: float = 0.0  # time without room in the queue
    num_blocks: int = 0  # received
    queue: deque[Block] = field(default_factory=deque)

    @property
    def is_busy(self) -> bool:
        """Whether the worker builds its worlds or collects a block."""
        return not self.is_ready or self.is_collecting

    def sign(self, activity: str) -> None:
        """Note a sign of life."""
        self.activity = activity
        self.sign_s = time.monotonic()


class Fleet:
    """The K collectors of a run."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        num_collectors: int,
        launcher: Launcher,
        logs: Path,
        queue_blocks: int,
        stall_s: float,
        num_starts: int = 0,
        version: int = 0,
    ) -> None:
        """Start the collectors. ``queue_blocks`` blocks of each may wait.

        ``settings`` are plain values. ``logs`` is the folder for the collectors' output. A
        collector without a sign of life for ``stall_s`` [s] ends the run. ``num_starts`` is the
        number of earlier starts of the run's collectors, ``version`` the learner's number of
        updates.
        """
        logs.mkdir(exist_ok=True)
        self.capacity = num_collectors * (queue_blocks + 1)
        self._launcher = launcher
        self._most_blocks = queue_blocks + 1  # of a collector, in work and in the queue
        self._stall_s = stall_s
        self.posts: list[Post] = []
        try:
            for number in range(num_collectors):
                identity = Identity(number, num_collectors, num_starts)
                log = logs / f"{number}.txt"
                worker = launcher.start(settings, identity, log)
                self.posts.append(Post(number, log, worker, version=version))
                _LOG.info("[Worker %d] starts: %s, log %s", number, worker.describe(), log)
        except BaseException:
            self.end()  # those that have started
            raise

    @property
    def num_queued(self) -> int:
        """Number of full blocks in the queue."""
        return sum(len(post.queue) for post in self.posts)

    def look(self, weights: Callable[[], Weights], num_left: int) -> int:
        """Receive all messages, and request up to ``num_left`` blocks. Return their number.

        ``weights`` returns the newest version. Raises CollectionError if collecting cannot
        continue, ConfigError if a collector refuses the settings of its worlds.
        """
        newest = None
        num_requested = 0
        for post in self.posts:
            try:
                self._receive(post)
                if not post.is_busy and self._has_room(post) and num_requested < num_left:
                    newest = newest or weights()
                    num_requested += 1
                    post.version = newest.num_updates
                    post.is_collecting = True
                    post.sign(COLLECTING)
                    post.worker.send(newest)
            except WorkerGoneError as error:
                raise self._end_of(post, f"died ({error})") from None
        return num_requested

    def take(self) -> tuple[int, Block] | None:
        """Return a block from the longest queue, and its collector's number."""
        post = max(self.posts, key=lambda post: len(post.queue))
        return (post.number, post.queue.popleft()) if post.queue else None

    def wait(self, timeout_s: float) -> None:
        """Wait for a message of a busy collector, at most ``timeout_s``."""
        busy = [post.worker for post in self.posts if post.is_busy]
        if busy:
            self._launcher.wait(busy, timeout_s)
        else:
            time.sleep(timeout_s)

    def end(self) -> None:
        """End all collectors, if necessary by force."""
        with ThreadPoolExecutor(max(1, len(self.posts))) as pool:
            list(pool.map(lambda post: post.worker.end(_END_S), self.posts))

    def _receive(self, post: Post) -> None:
        """Take a collector's messages. Raise CollectionError after a long silence."""
        while (message := post.worker.receive()) is not None:
            if isinstance(message, Block):
                post.queue.append(message)
                post.is_collecting = False
                post.num_blocks += 1
                post.sign(READY)
            else:
                post.is_ready = post.is_ready or message == READY
                post.sign(message)
        silent_s = time.monotonic() - post.sign_s
        if post.is_busy and silent_s >= (self._stall_s if post.is_ready else _START_S):
            raise self._end_of(
                post, f"has made no progress for {silent_s:.0f} s while {post.activity}"
            )

    def _has_room(self, post: Post) -> bool:
        """Return whether another block of an idle collector fits. Otherwise count its wait."""
        now = time.monotonic()
        post.waited_s += now - post.sign_s
        post.sign_s = now
        return len(post.queue) < self._most_blocks

    def _end_of(self, post: Post, fate: str) -> Exception:
        """Return the error for a collector's ``fate``."""
        post.worker.end(0.0)
        line = last_line(post.log)
        if not post.is_ready and line.startswith(_REFUSED):
            return ConfigError(line.removeprefix(_REFUSED))
        return CollectionError(
            f"collector {post.number} ({post.worker.describe()}) {fate}; its last line: {line}"
        )
