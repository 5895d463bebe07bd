"""The pool of collectors in the learner's process: it starts, supplies and restarts them."""

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

MOST_DEATHS = 3  # deaths of a collector in a row, without a block in between, that end the run
_END_S = 3.0  # time of the collectors to end after the request
_LOG = logging.getLogger(__name__)


class CollectionError(RuntimeError):
    """Collecting cannot continue; the message has the reason. The run ends after saving."""


class FullBlock(NamedTuple):
    """A block that waits to be stored."""

    collector: int
    number: int  # place of the block in the collector's memory
    content: Tensor  # bytes, in shared memory
    version: int  # of the policy that collected it
    starts_anew: bool  # whether the collector was restarted before it
    report: BlockReport


class WorkerHandle:
    """One collector as the pool sees it: its memory, process and blocks."""

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
        self.num_received = 0  # blocks
        self.num_lost = 0  # blocks that were lost when the collector died while it sent them
        # Since the last start: whether no block has arrived, and whether one was requested.
        self.is_new = True
        self.has_worlds = False

    def numbers(self) -> Counters:
        """Return the collector's counters."""
        return self.memory.numbers()

    def is_ready(self) -> bool:
        """Return whether the collector has built its worlds and can fill blocks.

        Blocks are given to ready collectors only: one that Ray cannot place would never fill them.
        """
        if self.connection is None:
            return False
        return self.numbers().phase in (Phase.WAITING, Phase.COLLECTING)

    def last_line(self) -> str:
        """Return the last line of the collector's log."""
        return last_line(self.log)

    def describe(self) -> str:
        """Return the collector's number and process, as words."""
        process = "no process" if self.process is None else self.process.describe()
        return f"Collector {self.number} ({process})"


class Pool:
    """K collectors; only one thread at a time may call it."""

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
        """Allocate shared memory for ``queue_blocks`` waiting blocks per collector and one in work.

        ``settings`` are plain values. ``num_starts`` is the number of earlier starts of the run's
        collectors. ``launcher`` starts them, by default as processes on this machine.
        """
        self.settings = settings
        self.layout = layout
        self.weights = weights
        self._launcher = LocalLauncher() if launcher is None else launcher
        logs.mkdir(exist_ok=True)
        self.handles = [
            WorkerHandle(i, CollectorMemory(layout, queue_blocks + 1), logs / f"{i}.txt")
            for i in range(num_collectors)
        ]
        # A block in work that becomes full waits, too.
        self.capacity = sum(handle.memory.num_blocks for handle in self.handles)
        for handle in self.handles:
            handle.num_starts = num_starts
        self.num_left = 0  # blocks that are not requested yet
        self.num_restarts = 0
        self.num_lost_episodes = 0
        self._is_ending = False

    def start(self, num_blocks: int) -> None:
        """Start all collectors, which are to fill ``num_blocks`` together."""
        self.num_left = num_blocks
        for handle in self.handles:
            self._start(handle)

    def receive(self, timeout_s: float) -> list[FullBlock]:
        """Return the blocks that arrive within ``timeout_s`` [s]; restart dead collectors.

        Raises CollectionError if one dies several times in a row.
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
        """Return a stored block to its collector."""
        handle = self.handles[block.collector]
        handle.memory.versions[block.number] = -1
        handle.free.append(block.number)
        self._give()

    def oldest_version(self) -> int | None:
        """Return the oldest policy version among the blocks that are not stored yet."""
        found = [handle.memory.oldest_version() for handle in self.handles]
        return min((version for version in found if version is not None), default=None)

    def end(self) -> list[FullBlock]:
        """End all collectors, if necessary by force; return the blocks that they had sent."""
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
        """Kill the remaining collectors, and close the files of the shared memory."""
        for handle in self.handles:
            if handle.process is not None and handle.process.is_alive():
                handle.process.kill()
                handle.process.join()
            handle.memory.memory.close()
        self.weights.memory.close()

    def num_sent(self) -> int:
        """Return the number of blocks sent, without those lost by a collector's death."""
        return sum(handle.numbers().num_sent - handle.num_lost for handle in self.handles)

    def num_received(self) -> int:
        """Return the number of blocks received."""
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
        _LOG.info(
            "[Collector %d] starts: %s, log %s",
            handle.number,
            handle.process.describe(),
            handle.log,
        )
        self._give()

    def _give(self) -> None:
        """Assign free blocks to the ready collectors that hold the fewest."""
        while self.num_left > 0 and not self._is_ending:
            idle = [handle for handle in self.handles if handle.free and handle.is_ready()]
            if not idle:
                return
            handle = min(idle, key=lambda handle: len(handle.given))
            number = handle.free.popleft()
            try:
                handle.connection.send(number)  # pyright: ignore[reportOptionalMemberAccess]
            except OSError:  # the collector died; ``receive`` restarts it
                handle.free.appendleft(number)
                return
            handle.given.add(number)
            handle.has_worlds = True
            self.num_left -= 1

    def _receive(self, handle: WorkerHandle) -> list[FullBlock]:
        """Return the blocks that a collector sent so far; notice its end."""
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
        """Take back the blocks of an ended collector; restart it unless the pool is ending."""
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
        if handle.has_worlds:
            num_worlds = self.layout.num_transitions // self.layout.num_steps
            self.num_lost_episodes += num_worlds

        problem = (
            f"{handle.describe()} died ({handle.process.how_it_ended()}); its last line: "
            f"{handle.last_line()}"
        )
        reason = self._launcher.problem()
        if reason is not None:
            raise CollectionError(reason)
        if handle.deaths >= MOST_DEATHS:
            raise CollectionError(
                f"{problem}; it died {handle.deaths} times in a row without a block in between"
            )
        _LOG.warning(
            "Note: %s. Its unfinished episodes are lost (%d in all so far), and it is restarted.",
            problem,
            self.num_lost_episodes,
        )
        self._start(handle)
