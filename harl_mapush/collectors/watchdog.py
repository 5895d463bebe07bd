"""The thread that reports what is stuck, and kills a collector that stays stuck."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from harl_mapush.collectors.ingest_thread import Filler
from harl_mapush.collectors.pool import Member, Pool
from harl_mapush.collectors.shared_memory import Phase

_LOOKS = 20  # within the time after which something counts as stuck
# That a collector may take to start at least: kernels are compiled, and the machine may be busy.
_START_S = 600.0
_END_S = 2.0  # that a look may take
_LOG = logging.getLogger(__name__)


class Watchdog(threading.Thread):
    """Checks collectors, filler and learner from time to time."""

    def __init__(
        self,
        pool: Pool,
        filler: Filler,
        learner_beat: Callable[[], tuple[float, str]],
        stall_s: float,
    ) -> None:
        """Name what does nothing for ``stall_s`` [s], kill a collector after twice the time.

        ``learner_beat`` returns when the learner was last seen at work, and at what.
        """
        super().__init__(name="watchdog", daemon=True)
        self._pool = pool
        self._filler = filler
        self._learner_beat = learner_beat
        self._stall_s = stall_s
        self._learner = threading.current_thread()
        # Progress, since when, whether it was named.
        self._seen: dict[int, tuple[object, float, bool]] = {}
        self._named: dict[str, float] = {}  # by name, the beat after which nothing came
        self._is_ending = threading.Event()

    def run(self) -> None:
        """Check the collectors at intervals until ``end`` is called."""
        while not self._is_ending.wait(self._stall_s / _LOOKS):
            for member in self._pool.members:
                self._look_at(member)
            self._look_at_thread("The filler", self._filler, self._filler.beat, "storing")
            beat, doing = self._learner_beat()
            self._look_at_thread("The learner", self._learner, beat, doing)

    def end(self) -> None:
        """Stop looking."""
        self._is_ending.set()
        self.join(_END_S)

    def _look_at(self, member: Member) -> None:
        now = time.monotonic()
        numbers = member.numbers()
        progress = (member.num_starts, numbers.phase, numbers.num_decisions, numbers.num_sent)
        before, since, was_named = self._seen.get(member.number, (None, now, False))
        has_nothing_to_do = numbers.phase == Phase.WAITING and not member.given
        if progress != before or has_nothing_to_do:
            self._seen[member.number] = (progress, now, False)
            return
        idle_s = now - since
        is_starting = numbers.phase in (Phase.STARTING, Phase.BUILDING)
        process = member.process
        if process is None or not process.is_alive():
            return  # the filler will notice
        if idle_s >= self._stall_s and not was_named:
            self._seen[member.number] = (progress, since, True)
            _LOG.warning("Note: %s", self.describe(member, idle_s))
        limit_s = max(2 * self._stall_s, _START_S if is_starting else 0.0)
        if idle_s >= limit_s and numbers.phase != Phase.PLACING:
            _LOG.warning("Note: %s is killed, after %.0f s.", member.describe(), idle_s)
            process.kill()
            self._seen[member.number] = (progress, now, True)

    def describe(self, member: Member, idle_s: float) -> str:
        """Return who is stuck, at what, with its last line and its stack."""
        numbers = member.numbers()
        if numbers.phase == Phase.COLLECTING:
            at = f", decision {numbers.step + 1} of block {numbers.num_sent + 1}"
        else:
            at = ""
        stack = member.process.stack() if member.process is not None else "none"
        return (
            f"{member.describe()} has done nothing for {idle_s:.0f} s while "
            f"{Phase(numbers.phase).describe()}{at}. Its "
            f"last line: {member.last_line()}. Its stack: {stack}"
        )

    def _look_at_thread(self, name: str, thread: threading.Thread, beat: float, doing: str) -> None:
        idle_s = time.monotonic() - beat
        if idle_s < self._stall_s or self._named.get(name) == beat or not thread.is_alive():
            return
        self._named[name] = beat
        frame = sys._current_frames().get(thread.ident or 0)
        stack = traceback.extract_stack(frame)[-6:] if frame is not None else []
        words = " < ".join(
            f"{os.path.basename(at.filename)}:{at.lineno} {at.name}" for at in reversed(stack)
        )
        _LOG.warning(
            "Note: %s has done nothing for %.0f s while %s. Its stack: %s",
            name,
            idle_s,
            doing,
            words,
        )
