"""What ends a command early: signals, and a time limit. Imports nothing large, because it runs
before torch.

While a command loads its libraries or builds its worlds, a signal ends it with one line, in the
second case after freeing what was built. While it learns, the iteration is finished and its state
saved.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from harl_mapush.durations import parse_duration

SIGNALLED = (
    128  # an exit code less the signal's number, as shells have it: 130 for Ctrl-C, 143 for SIGTERM
)
TIME_IS_UP = 3  # the exit code of a run that ``runner.max_wall_time`` ended

# Ctrl-C, what clusters send before they end a job, and what a terminal sends that closes.
ENDING_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
# Meant as "at once" where they come a second time.
_BY_HAND = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
)


class Signalled(BaseException):
    """A signal asked for an end, as Ctrl-C raises KeyboardInterrupt."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


class Interruption:
    """Notes a signal that asks for an end until the iteration is over.

    The same signal a second time ends the process at once if it is sent by hand; clusters repeat
    theirs. What is ignored, as SIGHUP under ``nohup``, stays ignored.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        self._before = _install(self._note)

    def __exit__(self, *_: object) -> None:
        _restore(self._before)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
        if number in _BY_HAND:
            signal.signal(number, self._before[number])


class WallTime:
    """Decides when a time limit leaves no room for another iteration."""

    def __init__(self, limit: str | None, start: float) -> None:
        """Count ``limit``, ``3h50m`` for instance, from ``start`` on the monotonic clock."""
        self._limit_s = None if limit is None else parse_duration(limit)
        self._start = start
        self._last = time.monotonic()
        self._longest_s = 0.0

    def is_past(self) -> bool:
        """Return whether the limit is over; may be called at any time."""
        return self._limit_s is not None and time.monotonic() - self._start >= self._limit_s

    def is_up(self) -> bool:
        """Return whether the next iteration would end too late; to be called once an iteration.

        It is expected to take at most one and a half times as long as the longest so far, logs and
        saves included.
        """
        now = time.monotonic()
        self._longest_s = max(self._longest_s, now - self._last)
        self._last = now
        return (
            self._limit_s is not None and now - self._start + 1.5 * self._longest_s >= self._limit_s
        )


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Make signals that ask for an end raise: KeyboardInterrupt for Ctrl-C, Signalled for the
    others.
    """

    def raise_signalled(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise Signalled(number)

    before = _install(raise_signalled)
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def as_exits(program: str) -> Iterator[None]:
    """Make signals that ask for an end write one line and exit, as long as there is nothing to
    free.
    """
    before = exit_on_signals(program)
    try:
        yield
    finally:
        _restore(before)


def exit_on_signals(program: str) -> dict[int, Any]:
    """Make signals that ask for an end write one line and exit; return the handlers that were
    there.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        sys.stderr.write(f"{program}: ended by {signal.Signals(number).name} before it began\n")
        sys.stderr.flush()
        os._exit(SIGNALLED + number)  # an exception would end in whatever library is being imported

    return _install(leave)


def program_of_python_m() -> str | None:
    """Return the program that ``python -m`` is about to run, None where Python runs anything
    else.
    """
    if sys.argv[:1] != ["-m"]:  # Python's documented sign that the module is still being looked for
        return None
    words = sys.orig_argv
    return f"python -m {words[words.index('-m') + 1]}" if "-m" in words[:-1] else None


def _install(handler: Callable[[int, FrameType | None], Any]) -> dict[int, Any]:
    """Install ``handler`` for the signals that are not ignored, in the main thread; return the
    handlers before it.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    asked = [number for number in ENDING_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in asked}


def _restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
