"""Launchers start collectors; the pool and the watchdog see a started one as a ``Worker``.

A launcher gets the end of a pipe, and memory that the learner's process reads. The collector waits
at the pipe for the number of a free block, fills that block of the memory, keeps its counters
there, and sends the number back with a report. The launcher decides on which machine the collector
runs.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol

from harl_mapush.collectors import collector_process
from harl_mapush.collectors.collector import Identity
from harl_mapush.collectors.shared_memory import CollectorMemory, Phase, SharedWeights
from harl_mapush.config import RunCfg
from harl_mapush.interruption import ENDING_SIGNALS

ADDRESS = "RAY_ADDRESS"  # environment variable with the address of a Ray cluster, as in Ray
NO_ANSWER = "it does not answer, so it is stopped or waits in the system"
_ANSWER_S = 1.0  # longest wait for a stack
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


class Worker(Protocol):
    """A started collector."""

    def is_alive(self) -> bool:
        """Return whether the collector still runs."""
        ...

    def kill(self) -> None:
        """End the collector by force."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait for the collector's end."""
        ...

    def describe(self) -> str:
        """Return the collector's process, for instance ``process 4711``."""
        ...

    def how_it_ended(self) -> str:
        """Return the cause of the collector's end."""
        ...

    def stack(self) -> str:
        """Return the collector's stack as one line, the innermost call first."""
        ...


class Launcher(Protocol):
    """Starts collectors."""

    medium: str  # the way of the blocks, in the doctor's messages

    def describe(self) -> str:
        """Return the place of the collectors, as words."""
        ...

    def start(
        self,
        settings: Mapping[str, Any],
        identity: Identity,
        connection: Connection,
        memory: CollectorMemory,
        weights: SharedWeights,
        log: Path,
    ) -> Worker:
        """Start a collector; this process's copy of ``connection`` is closed at its end."""
        ...

    def problem(self) -> str | None:
        """Return the reason if no more collectors can be started, else None."""
        ...


class LocalLauncher:
    """Starts collectors as processes on this machine."""

    medium = "shared"

    def __init__(self, collect: Callable[..., None] = collector_process.main) -> None:
        """Start processes that run ``collect``."""
        self._collect = collect

    def describe(self) -> str:
        """Return the place of the collectors, as words."""
        return "processes of this machine"

    def start(
        self,
        settings: Mapping[str, Any],
        identity: Identity,
        connection: Connection,
        memory: CollectorMemory,
        weights: SharedWeights,
        log: Path,
    ) -> Worker:
        """Start a collector's process."""
        worker = LocalWorker(
            self._collect, (settings, identity, connection, memory, weights, str(log)), memory, log
        )
        # Started later, the tracker would unblock the signals. The new process inherits the mask.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
        try:
            worker.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        connection.close()
        return worker

    def problem(self) -> str | None:
        """Return None, since a process can always be started."""
        return None


class LocalWorker(SpawnProcess):
    """The process of a collector."""

    def __init__(
        self,
        collect: Callable[..., None],
        arguments: tuple[Any, ...],
        memory: CollectorMemory,
        log: Path,
    ) -> None:
        """Prepare a process that runs ``collect``, without starting it."""
        super().__init__(
            target=collect, args=arguments, name=f"collector {arguments[1].number}", daemon=True
        )
        self._memory = memory
        self._log = log

    def describe(self) -> str:
        """Return the process and its number."""
        return f"process {self.pid}"

    def how_it_ended(self) -> str:
        """Return the exit code, or the signal that killed the process."""
        code = self.exitcode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def stack(self) -> str:
        """Make the process write its stack to its log; return the stack as one line."""
        if self.pid is None or self._memory.numbers().phase == Phase.STARTING:
            return "none yet, it imports its libraries"
        size = self._log.stat().st_size
        os.kill(self.pid, collector_process.STACK_SIGNAL)
        deadline = time.monotonic() + _ANSWER_S
        found: list[tuple[str, str, str]] = []
        while not found and time.monotonic() < deadline:
            time.sleep(0.05)
            found = _FRAME.findall(tail(self._log, start=size))
        if not found:
            return NO_ANSWER
        calls = [f"{os.path.basename(file)}:{line} {name}" for file, line, name in found[:8]]
        return " < ".join(calls)


def make_launcher(cfg: RunCfg) -> AbstractContextManager[Launcher]:
    """Return the launcher of a run's collectors, a context manager.

    Entering it raises ConfigError if it has no room for them.
    """
    if cfg.runner.engine == "local":
        return nullcontext(LocalLauncher())
    # The import of Ray reads this variable. Ray is an extra, so its module is imported here.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return importlib.import_module("mapush.extensions.ray.ray_launcher").RayLauncher(cfg)


def are_elsewhere(cfg: RunCfg) -> bool:
    """Return whether collectors run on other machines, whose memory is unknown here."""
    return cfg.runner.engine == "ray" and ADDRESS in os.environ


def last_line(path: Path) -> str:
    """Return the last line of a log file that is neither empty nor part of a stack."""
    last = "(none)"
    for line in tail(path).splitlines():
        is_in_stack = line.startswith(("  ", "Current thread", "Stack"))
        if line.strip() and not is_in_stack:
            last = line.strip()
    return last[:300]


def tail(path: Path, num_bytes: int = 8192, start: int | None = None) -> str:
    """Return the end of a file, or its contents from byte ``start`` on."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - num_bytes) if start is None else start)
            return file.read().decode(errors="replace")
    except OSError:
        return ""
