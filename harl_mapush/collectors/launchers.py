"""Launchers start collectors, on this machine or elsewhere.

A ``Worker`` stands for a started collector. A worker receives weights, and returns a block of T
decisions and signs of life in between. ``LAUNCHERS`` has the launchers by name, as in
``runner.engine``.
"""

from __future__ import annotations

import signal
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing import Pipe, connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from harl_mapush.collectors import collector_process
from harl_mapush.collectors.collector import Block, Identity, Weights
from harl_mapush.config import RunCfg
from harl_mapush.interruption import ENDING_SIGNALS
from mqe.extensions import Registry
from mqe.registry import SimCfg

_MESSAGE_S = 30  # longest pause within a message


class WorkerGoneError(Exception):
    """A collector has ended. The message has the cause."""


class CollectionError(RuntimeError):
    """Collecting cannot continue. The message has the reason. The run ends after saving."""


class Worker(Protocol):
    """A started collector."""

    def send(self, weights: Weights) -> None:
        """Send the actors' ``weights``, and request a block of T decisions by these weights.

        Raises WorkerGoneError if the collector has ended.
        """
        ...

    def receive(self) -> Block | str | None:
        """Return a block or a sign of life, None if there is neither.

        Raises WorkerGoneError if the collector has ended, CollectionError if no other can start.
        """
        ...

    def describe(self) -> str:
        """Return the collector's process, for instance ``process 4711``."""
        ...

    def end(self, timeout_s: float) -> None:
        """Request the collector's end, and kill it after ``timeout_s``."""
        ...


class Launcher(Protocol):
    """Starts collectors."""

    def start(self, settings: Mapping[str, Any], identity: Identity, log: Path) -> Worker:
        """Start a collector. Its output is appended to ``log``."""
        ...

    def wait(self, workers: Sequence[Any], timeout_s: float) -> None:
        """Wait for a message from any worker, at most ``timeout_s``."""
        ...


class LauncherEntry(NamedTuple):
    """One launcher by name."""

    # Returns the launcher as a context manager. Entering it raises ConfigError without room.
    make: Callable[[RunCfg], AbstractContextManager[Launcher]]
    # Returns the simulator's settings on the machines of the collectors, or raises ConfigError.
    sim_settings: Callable[[SimCfg], SimCfg] = lambda sim: sim
    # Whether the collectors have other memory than the learner's machine.
    is_elsewhere: Callable[[], bool] = lambda: False


LAUNCHERS: Registry[LauncherEntry] = Registry("engine")


class LocalLauncher:
    """Starts collectors as processes on this machine."""

    def __init__(self, collect: Callable[..., None] = collector_process.main) -> None:
        """Run ``collect`` in each process."""
        self._collect = collect

    def start(self, settings: Mapping[str, Any], identity: Identity, log: Path) -> LocalWorker:
        """Start a collector's process."""
        return LocalWorker(self._collect, settings, identity, log)

    def wait(self, workers: Sequence[LocalWorker], timeout_s: float) -> None:
        """Wait for a message from any process."""
        connection.wait([worker.connection for worker in workers], timeout_s)


class LocalWorker:
    """The process of a collector."""

    def __init__(
        self,
        collect: Callable[..., None],
        settings: Mapping[str, Any],
        identity: Identity,
        log: Path,
    ) -> None:
        """Start a process with ``collect``."""
        self.connection, theirs = Pipe()
        _limit_waits(self.connection)
        self.process = SpawnProcess(
            target=collect,
            args=(settings, identity, theirs, str(log)),
            name=f"collector {identity.number}",
            daemon=True,
        )
        with _blocked_signals():
            self.process.start()
        theirs.close()

    def send(self, weights: Weights) -> None:
        """Send ``weights``, and request a block. Raise WorkerGoneError if the process does not
        accept them.
        """
        try:
            self.connection.send(weights)
        except OSError:
            raise self._gone() from None

    def receive(self) -> Block | str | None:
        """Return the process's next message, None without any."""
        try:
            return self.connection.recv() if self.connection.poll() else None
        except (EOFError, OSError):
            raise self._gone() from None

    def describe(self) -> str:
        """Return the process and its number."""
        return f"process {self.process.pid}"

    def end(self, timeout_s: float) -> None:
        """Close the connection to end the process. Kill it after ``timeout_s``."""
        self.connection.close()
        self.process.join(timeout_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _gone(self) -> WorkerGoneError:
        self.end(1.0)
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


def _limit_waits(ends: Connection) -> None:
    """Make a message fail if a stopped process receives or sends only a part."""
    limit = struct.pack("ll", _MESSAGE_S, 0)
    with socket.fromfd(ends.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as pipe:
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def last_line(path: Path) -> str:
    """Return the last line of a log file, without empty lines and stacks."""
    last = "(none)"
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            is_in_stack = line.startswith(("  ", "Current thread", "Stack"))
            if line.strip() and not is_in_stack:
                last = line.strip()
    return last[:300]


LAUNCHERS.register("local", LauncherEntry(lambda cfg: nullcontext(LocalLauncher())))
