"""The thread that moves full blocks from the collectors into the replay buffer."""

from __future__ import annotations

import threading
import time
from collections import deque

import torch
from torch import Tensor

from harl_mapush.collectors.collector import BlockReport
from harl_mapush.collectors.pool import FullBlock, Pool
from harl_mapush.collectors.supervision.rate_limiter import FairLock, RateLimiter

_SOON_S = 0.005  # longest wait for further blocks while a block waits to be stored
_LATER_S = 0.2  # longest wait for blocks otherwise


class IngestThread(threading.Thread):
    """Receives blocks, stores them, and returns them to the collectors.

    If it fails, the error is kept for the learner, which ends the run.
    """

    def __init__(
        self, pool: Pool, limiter: RateLimiter, lock: FairLock, device: torch.device
    ) -> None:
        """Store on ``device``; ``lock`` is held during writes to the replay buffer."""
        super().__init__(name="ingest", daemon=True)
        self.pool = pool
        self.limiter = limiter
        self.lock = lock
        self.device = device
        self.queue: deque[FullBlock] = deque()
        # Reports and lags (versions behind the learner) of the blocks stored since the learner
        # took the lists.
        self.reports: list[BlockReport] = []
        self.lags: list[int] = []
        self.newest: dict[int, FullBlock] = {}  # the last stored block by collector
        self.error: BaseException | None = None
        self.beat = time.monotonic()
        self._is_ending = threading.Event()

    def run(self) -> None:
        """Receive and store blocks until ``end`` is called."""
        try:
            with torch.no_grad(), torch.accelerator.device_index(self.device.index):
                while not self._is_ending.is_set():
                    self.beat = time.monotonic()
                    self.queue.extend(self.pool.receive(_SOON_S if self.queue else _LATER_S))
                    self.store_waiting()
                self.queue.extend(self.pool.end())
                self.limiter.is_open = True
                self.store_waiting()
        except BaseException as error:
            self.error = error
            self.pool.end()
        with self.lock.taken():
            self.lock.notify()

    def end(self, timeout_s: float) -> None:
        """End the collectors, store the blocks that they sent, and end the thread."""
        self._is_ending.set()
        self.join(timeout_s)

    def store_waiting(self) -> None:
        """Store waiting blocks as long as the rate limiter allows it."""
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
        """Move one block into the replay buffer."""
        experience = self.limiter.experience
        if block.starts_anew:
            experience.cut(block.collector)
        for transition in self.pool.layout.read(self._on_device(block.content)):
            experience.store(transition, block.collector)
        self.limiter.stored()
        self.reports.append(block.report)
        self.lags.append(self.limiter.version - block.version)
        self.newest[block.collector] = block

    def _on_device(self, content: Tensor) -> Tensor:
        """Return a block on the learner's device, in one copy."""
        return content if self.device.type == "cpu" else content.to(self.device)
