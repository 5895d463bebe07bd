"""The processes of collectors.

A ``Worker`` stands for a started collector. It fills the blocks of a ``Channel``, and counts its
decisions there.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

from harl_mapush.collectors import collector_process
from harl_mapush.collectors.collector import BlockReport, Identity
from harl_mapush.collectors.exchange import Channel
from harl_mapush.interruption import ENDING_SIGNALS

_END_S = 1.0  # longest time from the end of a connection to the end of its process


class WorkerGoneError(Exception):
    """A collector has ended. The message has the cause."""


class CollectionError(RuntimeError):
    """Collecting cannot continue. The message has the reason. The run ends after saving."""


class FullBlock(NamedTuple):
    """A full block in a channel, ready for storage."""

    number: int
    report: BlockReport
    waited_s: float  # the collector's time without a free block before this one
    cycle_s: float  # that time, and the time of collecting


def start_worker(
    settings: Mapping[str, Any],
    identity: Identity,
    channel: Channel,
    log: Path,
    collect: Callable[..., None] = collector_process.main,
) -> Worker:
    """Start a collector's process without free blocks. It runs ``collect``, with output in
    ``log``.
    """
    ours, theirs = Pipe()
    process = SpawnProcess(
        target=collect,
        args=(settings, identity, channel, theirs, str(log)),
        name=f"collector {identity.number}",
        daemon=True,
    )
    with _blocked_signals():
        process.start()
    theirs.close()
    return Worker(process, ours)


# Starts a collector: settings, identity, channel, file for its output
StartWorker = Callable[[Mapping[str, Any], Identity, Channel, Path], "Worker"]


class Worker:
    """A collector's process. Block numbers go through ``connection``."""

    def __init__(self, process: SpawnProcess, connection: Connection) -> None:
        self.process = process
        self.connection = connection

    def free(self, number: int) -> None:
        """Return a block to the process. ``receive`` finds a process that has ended."""
        with suppress(OSError):
            self.connection.send(number)

    def receive(self) -> FullBlock | None:
        """Return the next full block. None: no block is full."""
        try:
            return FullBlock(*self.connection.recv()) if self.connection.poll() else None
        except (EOFError, OSError):
            raise self._gone() from None

    def describe(self) -> str:
        """Return the process and its number."""
        return f"process {self.process.pid}"

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()

    def _gone(self) -> WorkerGoneError:
        self.process.join(_END_S)
        code = self.process.exitcode
        if code is not None and code < 0:
            return WorkerGoneError(f"killed by {signal.Signals(-code).name}")
        return WorkerGoneError(f"exit code {code}")


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Context manager: block the ending signals for a new process, except on Windows."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Started later, the tracker would unblock the signals.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def last_line(path: Path) -> str:
    """Return a log file's last line, without empty lines and stacks."""
    last = "(none)"
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            is_in_stack = line.startswith(("  ", "Current thread", "Stack"))
            if line.strip() and not is_in_stack:
                last = line.strip()
    return last[:300]
