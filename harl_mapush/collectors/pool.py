"""The collectors as the learner's process sees them: started, supplied with free blocks,
restarted.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections import deque
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from harl_mapush.collectors.collector import BlockReport, Identity
from harl_mapush.collectors.launcher import Launcher, LocalLauncher, Worker, last_line
from harl_mapush.collectors.shared_memory import (
    BlockLayout,
    CollectorMemory,
    Counters,
    Phase,
    SharedWeights,
)

MOST_DEATHS = 3  # of one collector in a row, without a block in between
_END_S = 3.0  # [s] a collector has this long to end after the request
_LOG = logging.getLogger(__name__)


class CollectionError(RuntimeError):
    """Collecting cannot continue; the run ends, saved. The message says why."""


class FullBlock(NamedTuple):
    """A block that waits to be stored."""

    collector: int
    number: int  # of the block in the collector's memory
    content: Tensor  # bytes, in shared memory
    version: int  # of the policy behind it
    starts_anew: bool  # it does not follow the collector's block before it
    report: BlockReport


class WorkerHandle:
    """One collector."""

    def __init__(self, number: int, memory: CollectorMemory, log: Path) -> None:
        self.number = number
        self.memory = memory
        self.log = log
        self.process: Worker | None = None
        self.connection: Connection | None = None
        self.num_starts = 0
        self.deaths = 0  # in a row
        self.free = deque(range(memory.num_blocks))
        self.given: set[int] = set()
        self.num_received = self.num_lost = (
            0  # blocks, ever; lost are those that it died while it sent
        )
        self.is_new = True  # no block came since it was started
        self.has_worlds = False  # likewise, it was asked for a block

    def numbers(self) -> Counters:
        """Return what it counts."""
        return self.memory.numbers()

    def is_ready(self) -> bool:
        """Return whether it has its worlds: what is given to one that never gets a place would
        never be filled.
        """
        return self.connection is not None and self.numbers().phase in (
            Phase.WAITING,
            Phase.COLLECTING,
        )

    def last_line(self) -> str:
        """Return the last line that it wrote."""
        return last_line(self.log)

    def describe(self) -> str:
        """Name it and its process."""
        return (
            f"Collector {self.number} ({self.process.describe() if self.process else 'no process'})"
        )


class Pool:
    """K collectors. One thread at a time may call it."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        num_collectors: int,
        layout: BlockLayout,
        weights: SharedWeights,
        logs: Path,
        queue_blocks: int,
        num_starts: int = 0,
        launcher: Launcher | None = None,
    ) -> None:
        """Allocate shared memory: ``queue_blocks`` a collector may wait while one more is being
        filled.

        ``settings`` are plain values; ``num_starts`` is how often the run's collectors were started
        before,
        ``launcher`` starts them, in processes of this machine where it is None.
        """
        self.settings = settings
        self.layout = layout
        self.weights = weights
        self._launcher = LocalLauncher() if launcher is None else launcher
        self.capacity = num_collectors * queue_blocks
        logs.mkdir(exist_ok=True)
        self.handles = [
            WorkerHandle(i, CollectorMemory(layout, queue_blocks + 1), logs / f"{i}.txt")
            for i in range(num_collectors)
        ]
        for handle in self.handles:
            handle.num_starts = num_starts
        self.num_left = 0  # blocks that no collector was asked for yet
        self.num_restarts = self.num_lost_episodes = 0
        self._is_ending = False

    def start(self, num_blocks: int) -> None:
        """Start all collectors, which are to fill ``num_blocks`` together."""
        self.num_left = num_blocks
        for handle in self.handles:
            self._start(handle)

    def receive(self, timeout_s: float) -> list[FullBlock]:
        """Wait for full blocks; restart a collector that died.

        Raises CollectionError where one dies again and again.
        """
        connections = {
            handle.connection: handle for handle in self.handles if handle.connection is not None
        }
        if not connections:
            time.sleep(timeout_s)
        full = []
        for ready in wait(list(connections), timeout_s):
            full += self._receive(connections[ready])  # pyright: ignore[reportArgumentType]
        self._give()
        return full

    def release(self, block: FullBlock) -> None:
        """Take back a block that is stored."""
        handle = self.handles[block.collector]
        handle.memory.versions[block.number] = -1
        handle.free.append(block.number)
        self._give()

    def oldest_version(self) -> int | None:
        """Return the oldest policy version behind what is not stored yet."""
        found = [handle.memory.oldest_version() for handle in self.handles]
        return min((version for version in found if version is not None), default=None)

    def end(self) -> list[FullBlock]:
        """End all collectors, those by force that do not; return the blocks that they had sent."""
        self._is_ending = True
        full = []
        deadline = time.monotonic() + _END_S
        for handle in self.handles:
            handle.memory.set(must_end=1)
        while any(handle.connection for handle in self.handles) and time.monotonic() < deadline:
            full += self.receive(0.1)
        for handle in self.handles:
            if handle.process is not None and handle.process.is_alive():
                _LOG.warning("Note: %s did not end and was killed.", handle.describe())
                handle.process.kill()
                handle.process.join()
            full += self._receive(handle)
        return full

    def close(self) -> None:
        """Kill what still runs, and close the files behind the shared memory."""
        for handle in self.handles:
            if handle.process is not None and handle.process.is_alive():
                handle.process.kill()
                handle.process.join()
            handle.memory.memory.close()
        self.weights.memory.close()

    def num_sent(self) -> int:
        """Return the blocks that collectors sent, less those that a collector died over while it
        sent them.
        """
        return sum(handle.numbers().num_sent - handle.num_lost for handle in self.handles)

    def num_received(self) -> int:
        """Return the blocks that arrived."""
        return sum(handle.num_received for handle in self.handles)

    def _start(self, handle: WorkerHandle) -> None:
        ours, theirs = multiprocessing.Pipe()
        identity = Identity(handle.number, len(self.handles), handle.num_starts)
        handle.memory.set(phase=Phase.STARTING, step=0)
        handle.process = self._launcher.start(
            self.settings, identity, theirs, handle.memory, self.weights, handle.log
        )
        handle.connection = ours
        handle.is_new = True
        handle.has_worlds = False
        handle.num_starts += 1
        self._give()

    def _give(self) -> None:
        """Hand free blocks out, to those first who have fewest."""
        while self.num_left > 0 and not self._is_ending:
            idle = [handle for handle in self.handles if handle.free and handle.is_ready()]
            if not idle:
                return
            handle = min(idle, key=lambda handle: len(handle.given))
            number = handle.free.popleft()
            try:
                handle.connection.send(number)  # pyright: ignore[reportOptionalMemberAccess]
            except OSError:  # it died; ``receive`` will see
                handle.free.appendleft(number)
                return
            handle.given.add(number)
            handle.has_worlds = True
            self.num_left -= 1

    def _receive(self, handle: WorkerHandle) -> list[FullBlock]:
        """Take what a collector sent so far, and notice its end."""
        full: list[FullBlock] = []
        connection = handle.connection
        try:
            while connection is not None and connection.poll():
                number, version, report = connection.recv()
                content = handle.memory.blocks[number]
                full.append(
                    FullBlock(
                        handle.number, number, content, version, handle.is_new, BlockReport(*report)
                    )
                )
                handle.given.discard(number)
                handle.num_received += 1
                handle.is_new = False
                handle.deaths = 0
        except (EOFError, OSError):
            self._take_back(handle)
        return full

    def _take_back(self, handle: WorkerHandle) -> None:
        """Take back what an ended collector had; restart it unless the end is wanted."""
        assert handle.process is not None
        assert handle.connection is not None
        handle.connection.close()
        handle.connection = None
        handle.process.join(1.0)
        if handle.process.is_alive():
            handle.process.kill()
            handle.process.join()
        for number in handle.given:
            handle.memory.versions[number] = -1
        handle.free.extend(sorted(handle.given))
        self.num_left += len(handle.given)
        handle.given.clear()
        handle.num_lost = handle.numbers().num_sent - handle.num_received
        if self._is_ending:
            return
        handle.deaths += 1
        self.num_restarts += 1
        self.num_lost_episodes += handle.has_worlds * (
            self.layout.num_transitions // self.layout.num_steps
        )
        problem = (
            f"{handle.describe()} died ({handle.process.how_it_ended()}); its last line: "
            f"{handle.last_line()}"
        )
        reason = self._launcher.problem()
        if reason is not None:
            raise CollectionError(reason)
        if handle.deaths >= MOST_DEATHS:
            raise CollectionError(
                f"{problem}; it is the {handle.deaths}. time without a block in between"
            )
        _LOG.warning(
            "Note: %s. Its unfinished episodes are lost (%d in all so far) and it is started anew.",
            problem,
            self.num_lost_episodes,
        )
        self._start(handle)
