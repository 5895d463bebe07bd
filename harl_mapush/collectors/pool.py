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
from harl_mapush.collectors.launcher import Engine, LocalEngine, Worker, last_line
from harl_mapush.collectors.shared_memory import (
    BlockLayout,
    CollectorMemory,
    Numbers,
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


class Member:
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

    def numbers(self) -> Numbers:
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
        engine: Engine | None = None,
    ) -> None:
        """Allocate shared memory: ``queue_blocks`` a collector may wait while one more is being
        filled.

        ``settings`` are plain values; ``num_starts`` is how often the run's collectors were started
        before,
        ``engine`` starts them, in processes of this machine where it is None.
        """
        self.settings = settings
        self.layout = layout
        self.weights = weights
        self._engine = LocalEngine() if engine is None else engine
        self.capacity = num_collectors * queue_blocks
        logs.mkdir(exist_ok=True)
        self.members = [
            Member(i, CollectorMemory(layout, queue_blocks + 1), logs / f"{i}.txt")
            for i in range(num_collectors)
        ]
        for member in self.members:
            member.num_starts = num_starts
        self.num_left = 0  # blocks that no collector was asked for yet
        self.num_restarts = self.num_lost_episodes = 0
        self._is_ending = False

    def start(self, num_blocks: int) -> None:
        """Start all collectors, which are to fill ``num_blocks`` together."""
        self.num_left = num_blocks
        for member in self.members:
            self._start(member)

    def receive(self, timeout_s: float) -> list[FullBlock]:
        """Wait for full blocks; restart a collector that died.

        Raises CollectionError where one dies again and again.
        """
        connections = {
            member.connection: member for member in self.members if member.connection is not None
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
        member = self.members[block.collector]
        member.memory.versions[block.number] = -1
        member.free.append(block.number)
        self._give()

    def oldest_version(self) -> int | None:
        """Return the oldest policy version behind what is not stored yet."""
        found = [member.memory.oldest_version() for member in self.members]
        return min((version for version in found if version is not None), default=None)

    def end(self) -> list[FullBlock]:
        """End all collectors, those by force that do not; return the blocks that they had sent."""
        self._is_ending = True
        full = []
        deadline = time.monotonic() + _END_S
        for member in self.members:
            member.memory.set(must_end=1)
        while any(member.connection for member in self.members) and time.monotonic() < deadline:
            full += self.receive(0.1)
        for member in self.members:
            if member.process is not None and member.process.is_alive():
                _LOG.warning("Note: %s did not end and was killed.", member.describe())
                member.process.kill()
                member.process.join()
            full += self._receive(member)
        return full

    def close(self) -> None:
        """Kill what still runs, and close the files behind the shared memory."""
        for member in self.members:
            if member.process is not None and member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.memory.memory.close()
        self.weights.memory.close()

    def num_sent(self) -> int:
        """Return the blocks that collectors sent, less those that a collector died over while it
        sent them.
        """
        return sum(member.numbers().num_sent - member.num_lost for member in self.members)

    def num_received(self) -> int:
        """Return the blocks that arrived."""
        return sum(member.num_received for member in self.members)

    def _start(self, member: Member) -> None:
        ours, theirs = multiprocessing.Pipe()
        who = Identity(member.number, len(self.members), member.num_starts)
        member.memory.set(phase=Phase.STARTING, step=0)
        member.process = self._engine.start(
            self.settings, who, theirs, member.memory, self.weights, member.log
        )
        member.connection = ours
        member.is_new = True
        member.has_worlds = False
        member.num_starts += 1
        self._give()

    def _give(self) -> None:
        """Hand free blocks out, to those first who have fewest."""
        while self.num_left > 0 and not self._is_ending:
            idle = [member for member in self.members if member.free and member.is_ready()]
            if not idle:
                return
            member = min(idle, key=lambda member: len(member.given))
            number = member.free.popleft()
            try:
                member.connection.send(number)  # pyright: ignore[reportOptionalMemberAccess]
            except OSError:  # it died; ``receive`` will see
                member.free.appendleft(number)
                return
            member.given.add(number)
            member.has_worlds = True
            self.num_left -= 1

    def _receive(self, member: Member) -> list[FullBlock]:
        """Take what a collector sent so far, and notice its end."""
        full: list[FullBlock] = []
        connection = member.connection
        try:
            while connection is not None and connection.poll():
                number, version, report = connection.recv()
                content = member.memory.blocks[number]
                full.append(
                    FullBlock(
                        member.number, number, content, version, member.is_new, BlockReport(*report)
                    )
                )
                member.given.discard(number)
                member.num_received += 1
                member.is_new = False
                member.deaths = 0
        except (EOFError, OSError):
            self._take_back(member)
        return full

    def _take_back(self, member: Member) -> None:
        """Take back what an ended collector had; restart it unless the end is wanted."""
        assert member.process is not None
        assert member.connection is not None
        member.connection.close()
        member.connection = None
        member.process.join(1.0)
        if member.process.is_alive():
            member.process.kill()
            member.process.join()
        for number in member.given:
            member.memory.versions[number] = -1
        member.free.extend(sorted(member.given))
        self.num_left += len(member.given)
        member.given.clear()
        member.num_lost = member.numbers().num_sent - member.num_received
        if self._is_ending:
            return
        member.deaths += 1
        self.num_restarts += 1
        self.num_lost_episodes += member.has_worlds * (
            self.layout.num_transitions // self.layout.num_steps
        )
        problem = (
            f"{member.describe()} died ({member.process.how_it_ended()}); its last line: "
            f"{member.last_line()}"
        )
        reason = self._engine.problem()
        if reason is not None:
            raise CollectionError(reason)
        if member.deaths >= MOST_DEATHS:
            raise CollectionError(
                f"{problem}; it is the {member.deaths}. time without a block in between"
            )
        _LOG.warning(
            "Note: %s. Its unfinished episodes are lost (%d in all so far) and it is started anew.",
            problem,
            self.num_lost_episodes,
        )
        self._start(member)
