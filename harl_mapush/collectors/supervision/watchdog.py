"""The thread that reports stuck processes and threads, and kills collectors that stay stuck."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from harl_mapush.collectors.ingest_thread import IngestThread
from harl_mapush.collectors.pool import Pool, WorkerHandle
from harl_mapush.collectors.shared_memory import Phase

_LOOKS = 20  # checks within ``stall_s``
# Time that every collector has for its start: kernels are compiled, and the machine may be busy.
_START_S = 600.0
_END_S = 2.0  # longest wait for the end of the thread
_LOG = logging.getLogger(__name__)


class Watchdog(threading.Thread):
    """Checks the progress of collectors, ingest thread and learner at intervals."""

    def __init__(
        self,
        pool: Pool,
        ingest: IngestThread,
        learner_beat: Callable[[], tuple[float, str]],
        stall_s: float,
    ) -> None:
        """Report a lack of progress for ``stall_s`` [s]; kill a collector after twice that time.

        ``learner_beat`` returns the time of the learner's last progress, and its activity.
        """
        super().__init__(name="watchdog", daemon=True)
        self._pool = pool
        self._ingest = ingest
        self._learner_beat = learner_beat
        self._stall_s = stall_s
        self._learner = threading.current_thread()
        # Progress of each collector, the time of its last change, and whether it was reported.
        self._seen: dict[int, tuple[object, float, bool]] = {}
        self._reported: dict[str, float] = {}  # the last beat of reported threads, by name
        self._is_ending = threading.Event()

    def run(self) -> None:
        """Check at intervals until ``end`` is called."""
        while not self._is_ending.wait(self._stall_s / _LOOKS):
            for handle in self._pool.handles:
                self._look_at(handle)
            self._look_at_thread("The ingest thread", self._ingest, self._ingest.beat, "storing")
            beat, doing = self._learner_beat()
            self._look_at_thread("The learner", self._learner, beat, doing)

    def end(self) -> None:
        """End the thread."""
        self._is_ending.set()
        self.join(_END_S)

    def _look_at(self, handle: WorkerHandle) -> None:
        now = time.monotonic()
        numbers = handle.numbers()
        progress = (handle.num_starts, numbers.phase, numbers.num_decisions, numbers.num_sent)
        before, since, was_reported = self._seen.get(handle.number, (None, now, False))
        has_nothing_to_do = numbers.phase == Phase.WAITING and not handle.given
        if progress != before or has_nothing_to_do:
            self._seen[handle.number] = (progress, now, False)
            return
        idle_s = now - since
        is_importing = numbers.phase == Phase.STARTING
        is_starting = is_importing or numbers.phase == Phase.BUILDING
        process = handle.process
        if process is None or not process.is_alive():
            return  # the ingest thread restarts it
        if idle_s >= self._stall_s and not was_reported and not is_importing:
            self._seen[handle.number] = (progress, since, True)
            _LOG.warning("Note: %s", self.describe(handle, idle_s))
        limit_s = max(2 * self._stall_s, _START_S if is_starting else 0.0)
        if idle_s >= limit_s and numbers.phase != Phase.PLACING:
            _LOG.warning("Note: %s is killed after %.0f s.", handle.describe(), idle_s)
            process.kill()
            self._seen[handle.number] = (progress, now, True)

    def describe(self, handle: WorkerHandle, idle_s: float) -> str:
        """Return a message about a stuck collector, with its last line and its stack."""
        numbers = handle.numbers()
        at = ""
        if numbers.phase == Phase.COLLECTING:
            at = f", decision {numbers.step + 1} of block {numbers.num_sent + 1}"
        stack = handle.process.stack() if handle.process is not None else "none"
        return (
            f"{handle.describe()} has made no progress for {idle_s:.0f} s while "
            f"{Phase(numbers.phase).describe()}{at}. Its last line: {handle.last_line()}. "
            f"Its stack: {stack}"
        )

    def _look_at_thread(self, name: str, thread: threading.Thread, beat: float, doing: str) -> None:
        idle_s = time.monotonic() - beat
        if idle_s < self._stall_s or self._reported.get(name) == beat or not thread.is_alive():
            return
        self._reported[name] = beat
        frame = sys._current_frames().get(thread.ident or 0)
        stack = traceback.extract_stack(frame)[-6:] if frame is not None else []
        words = " < ".join(
            f"{os.path.basename(at.filename)}:{at.lineno} {at.name}" for at in reversed(stack)
        )
        _LOG.warning(
            "Note: %s has made no progress for %.0f s while %s. Its stack: %s",
            name,
            idle_s,
            doing,
            words,
        )
