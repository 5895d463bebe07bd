"""Early ends by a signal or a time limit.

While a command imports its libraries, a signal ends it with one line. While it builds its worlds, a
signal ends it with one line after freeing them. While it learns, the iteration is completed and its
state saved. This module is used before torch is imported, so its own imports are small.
"""

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

# The exit code is this plus a signal's number, as in shells: 130 for Ctrl-C, 143 for SIGTERM.
SIGNALLED = 128
TIME_IS_UP = 3  # the exit code after ``runner.max_wall_time``


def _signals(*names: str) -> tuple[signal.Signals, ...]:
    """Return the signals by name. Windows has only some."""
    return tuple(signal.Signals[name] for name in names if name in signal.Signals.__members__)


# Signals from Ctrl-C, from clusters before a job's end, and from a closing terminal.
ENDING_SIGNALS = _signals("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
# A second signal of this kind ends the process at once.
_BY_HAND = _signals("SIGINT", "SIGTERM", "SIGHUP")
_UNKNOWN_SAVE_S = 5.0  # time allowed for the last checkpoint before the first is measured


class Signalled(KeyboardInterrupt):
    """A termination signal arrived, from Ctrl-C or elsewhere."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


class Interruption:
    """Records a termination signal until the iteration is complete.

    A second signal by hand (Ctrl-C, for instance) ends the process at once. Clusters repeat their
    signals, without further effect. Ignored signals, such as SIGHUP under ``nohup``, stay ignored.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[int, Any] = {}

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Context manager: record a signal instead of ending."""
        self._before = _install(self._note)
        with _restored(self._before):
            yield

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
        if number in _BY_HAND:
            signal.signal(number, self._before[number])


class WallTime:
    """A run's time limit, and the decision whether another iteration fits.

    The longest iteration so far, with the pause after it, stands for the next one. Building the
    run, compiling and warming up happen once, before or in the first iteration. So the first
    iteration does not count as soon as there is another.
    """

    def __init__(self, limit: str | None, start: float) -> None:
        """Measure ``limit``, for instance ``3h50m``, from ``start`` on the monotonic clock."""
        self._limit_s = None if limit is None else parse_duration(limit)
        self._start = start
        self._last = time.monotonic()
        self._num_iterations = 0
        self._longest_s = 0.0
        self._save_s: float | None = None  # longest time of a checkpoint

    def is_past(self) -> bool:
        """Return whether the time limit is over, at any time."""
        return self._limit_s is not None and time.monotonic() - self._start >= self._limit_s

    def is_up(self) -> bool:
        """Return whether the next iteration would end too late. Call this once per iteration.

        The estimate for the next iteration and the last checkpoint is one and a half times the
        longest so far.
        """
        now = time.monotonic()
        if self._num_iterations == 1:
            self._longest_s = 0.0
        self._longest_s = max(self._longest_s, now - self._last)
        self._num_iterations += 1
        self._last = now
        if self._limit_s is None:
            return False
        save_s = _UNKNOWN_SAVE_S if self._save_s is None else self._save_s
        return now - self._start + 1.5 * (self._longest_s + save_s) >= self._limit_s

    def note_saved(self) -> None:
        """Measure the checkpoint written since the last call to ``is_up``."""
        now = time.monotonic()
        self._save_s = max(self._save_s or 0.0, now - self._last)
        self._last = now


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Context manager: raise Signalled on termination signals."""

    def raise_signalled(number: int, frame: FrameType | None) -> None:
        raise Signalled(number)

    with _restored(_install(raise_signalled)):
        yield


@contextmanager
def as_exits(program: str) -> Iterator[None]:
    """Context manager: write one line and exit on a termination signal, for code with nothing to
    free.
    """
    with _restored(exit_on_signals(program)):
        yield


def exit_on_signals(program: str) -> dict[int, Any]:
    """Set handlers for termination signals: write one line and exit. Return the former handlers."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.stderr.write(f"{program}: ended by {signal.Signals(number).name} before it began\n")
        sys.stderr.flush()
        # The library being imported could catch an exception.
        os._exit(SIGNALLED + number)

    return _install(leave)


def program_of_python_m() -> str | None:
    """Return the program's name ``python -m MODULE``, None without ``-m``."""
    # According to Python's documentation argv[0] is "-m" until the module is found.
    if sys.argv[:1] != ["-m"]:
        return None
    words = sys.orig_argv
    if "-m" not in words[:-1]:
        return None
    return f"python -m {words[words.index('-m') + 1]}"


def _install(handler: Callable[[int, FrameType | None], Any]) -> dict[int, Any]:
    """Set ``handler`` for all termination signals except ignored ones. Return the former handlers.

    Outside the main thread nothing is set.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    signals = [number for number in ENDING_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in signals}


@contextmanager
def _restored(before: dict[int, Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
