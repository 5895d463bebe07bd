"""The thread that takes full blocks from the collectors and moves them into the replay."""

from __future__ import annotations

import threading
import time
from collections import deque

import torch
from torch import Tensor

from harl_mapush.collectors.collector import BlockReport
from harl_mapush.collectors.pool import FullBlock, Pool
from harl_mapush.collectors.rate_limiter import FairLock, RateLimiter

# until it looks again, where a block waits and where none does
_SOON_S = 0.005
_LATER_S = 0.2


class IngestThread(threading.Thread):
    """Receives, stores, and hands free blocks back. An error of its own is kept for the learner,
    who ends the run.
    """

    def __init__(
        self, pool: Pool, limiter: RateLimiter, lock: FairLock, device: torch.device
    ) -> None:
        """Store on ``device``; ``turns`` is held while the replay is written to."""
        super().__init__(name="ingest", daemon=True)
        self.pool = pool
        self.limiter = limiter
        self.lock = lock
        self.device = device
        self.queue: deque[FullBlock] = deque()
        self.reports: list[BlockReport] = []  # of what was stored since the learner took them
        # Policy versions between a block and the learner when it was stored; likewise.
        self.lags: list[int] = []
        self.newest: dict[int, FullBlock] = {}  # of every collector, the last one stored
        self.error: BaseException | None = None
        self.beat = time.monotonic()
        self._is_ending = threading.Event()

    def run(self) -> None:
        """Work until ``end``."""
        try:
            with torch.no_grad(), torch.accelerator.device_index(self.device.index):
                while not self._is_ending.is_set():
                    self.beat = time.monotonic()
                    self.queue.extend(self.pool.receive(_SOON_S if self.queue else _LATER_S))
                    self.store_what_may()
                self.queue.extend(self.pool.end())
                self.limiter.is_open = True
                self.store_what_may()
        except BaseException as error:
            self.error = error
            self.pool.end()
        with self.lock.taken():
            self.lock.notify()

    def end(self, timeout_s: float) -> None:
        """End the collectors, store what they had sent, and end."""
        self._is_ending.set()
        self.join(timeout_s)

    def store_what_may(self) -> None:
        """Store the blocks that wait, as far as the learner's pace allows."""
        while True:
            with self.lock.taken():
                self.limiter.oldest_version = self.pool.oldest_version()
                if not self.queue or not self.limiter.may_store():
                    self.lock.notify()
                    return
                block = self.queue.popleft()
                self.store(block)
                self.lock.notify()
            self.pool.release(block)
            self.beat = time.monotonic()

    def store(self, block: FullBlock) -> None:
        """Move one block into the replay."""
        experience = self.limiter.experience
        if block.starts_anew:
            experience.cut(block.collector)
        for transition in self.pool.layout.read(self._brought(block.content)):
            experience.store(transition, block.collector)
        self.limiter.stored()
        self.reports.append(block.report)
        self.lags.append(self.limiter.version - block.version)
        self.newest[block.collector] = block

    def _brought(self, content: Tensor) -> Tensor:
        """Return a block on the learner's device, in one copy."""
        return content if self.device.type == "cpu" else content.to(self.device)
