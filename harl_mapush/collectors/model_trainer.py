"""The thread that trains a learned model of the worlds, beside the team's updates."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from harl_mapush.collectors.supervision.rate_limiter import FairLock, RateLimiter
from harl_mapush.learning.world_model.world_model import Rows, WorldModel

_LATER_S = 0.05  # wait until the next check if no round is due


class ModelTrainer(threading.Thread):
    """Trains the model between the learner's updates, on a GPU in a stream of its own.

    It holds the lock only while it draws a batch and while it publishes weights. If it fails, the
    error is kept for the learner, which ends the run.
    """

    def __init__(self, model: WorldModel, limiter: RateLimiter, lock: FairLock) -> None:
        """Train ``model`` on the replay buffer of ``limiter`` once the warm-up is over."""
        super().__init__(name="model", daemon=True)
        model.separate()
        self.model = model
        self.limiter = limiter
        self.lock = lock
        self.error: BaseException | None = None
        self._is_ending = threading.Event()
        # On a GPU the streams of this thread and of the learner.
        self._streams: tuple[torch.Stream, torch.Stream] | None = None

    def run(self) -> None:
        """Train until ``end`` is called."""
        device = self.model.device
        try:
            with ExitStack() as stack, torch.accelerator.device_index(device.index):
                if device.type != "cpu":
                    learners = torch.accelerator.current_stream(device)
                    self._streams = (torch.Stream(device), learners)
                    stack.enter_context(self._streams[0])
                while not self._is_ending.is_set():
                    rows = self._draw()
                    if rows is None:
                        self._is_ending.wait(_LATER_S)
                        continue
                    self.model.train_round(rows)
                    if self._streams is not None:
                        # Otherwise the learner's stream would wait for the round.
                        self._streams[0].synchronize()
                    with self._in_turn():
                        self.model.publish()
        except BaseException as error:
            self.error = error
        with self.lock.taken():
            self.lock.notify()

    def end(self, timeout_s: float) -> None:
        """End the thread after the current round."""
        self._is_ending.set()
        self.join(timeout_s)

    def _draw(self) -> Rows | None:
        with self._in_turn():
            if not self.limiter.is_warm or not self.model.is_due():
                return None
            return self.model.draw(self.limiter.experience.replay)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Hold the lock, and on a GPU order this thread's stream after the learner's."""
        with self.lock.taken():
            if self._streams is None:
                yield
                return
            own, learners = self._streams
            own.wait_stream(learners)
            yield
            learners.wait_stream(own)
