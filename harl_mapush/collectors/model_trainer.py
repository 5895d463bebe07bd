"""The thread that fits a learned model of the worlds beside the team's updates, so that they need
not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from harl_mapush.collectors.rate_limiter import Pace, Turns
from harl_mapush.learning.world_model.world_model import Rows, WorldModel

_LATER_S = 0.05  # until it looks again, where nothing is due


class Fitter(threading.Thread):
    """Draws and publishes in turn with learner and filler, and fits meanwhile, on a GPU in a stream
    of its own.

    An error of its own is kept for the learner, who ends the run.
    """

    def __init__(self, model: WorldModel, pace: Pace, turns: Turns) -> None:
        """Fit ``model`` to the replay of ``pace`` once the warm-up is over."""
        super().__init__(name="model", daemon=True)
        model.separate()
        self.model = model
        self.pace = pace
        self.turns = turns
        self.error: BaseException | None = None
        self._is_ending = threading.Event()
        self._streams: tuple[torch.Stream, torch.Stream] | None = None  # its own, the learner's

    def run(self) -> None:
        """Work until ``end``."""
        device = self.model.device
        try:
            with ExitStack() as stack, torch.accelerator.device_index(device.index):
                if device.type != "cpu":
                    self._streams = torch.Stream(device), torch.accelerator.current_stream(device)
                    stack.enter_context(self._streams[0])
                while not self._is_ending.is_set():
                    rows = self._draw()
                    if rows is None:
                        self._is_ending.wait(_LATER_S)
                        continue
                    self.model.train_round(rows)
                    if self._streams is not None:
                        # Else the learner's stream would wait for the fit.
                        self._streams[0].synchronize()
                    with self._in_turn():
                        self.model.publish()
        except BaseException as error:
            self.error = error
        with self.turns.taken():
            self.turns.notify()

    def end(self, timeout_s: float) -> None:
        """End after the round that is under way."""
        self._is_ending.set()
        self.join(timeout_s)

    def _draw(self) -> Rows | None:
        with self._in_turn():
            if not self.pace.is_warm or not self.model.is_due():
                return None
            return self.model.draw(self.pace.experience.replay)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Hold the lock, and on a GPU keep to the order of what the learner has its stream do."""
        with self.turns.taken():
            if self._streams is None:
                yield
                return
            own, learners = self._streams
            own.wait_stream(learners)
            yield
            learners.wait_stream(own)
