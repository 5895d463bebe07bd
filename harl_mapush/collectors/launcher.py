"""What starts collectors, and what the pool and the watchdog know about a started one.

A launcher gets the end of a pipe, and memory that the learner's process reads. The collector waits
at the pipe for the number of a free block, fills that block of the memory, keeps its numbers there,
and sends the number back with a report. The launcher decides where the collector runs.
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

ADDRESS = (
    "RAY_ADDRESS"  # the environment variable that names a Ray cluster, as for Ray's own commands
)
NO_ANSWER = "it does not answer, so it is stopped or waits in the system"
_ANSWER_S = 1.0  # for a stack
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


class Worker(Protocol):
    """A collector that was started."""

    def is_alive(self) -> bool:
        """Return whether it may still do anything."""
        ...

    def kill(self) -> None:
        """End it by force."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        ...

    def describe(self) -> str:
        """Return where it runs: ``process 4711``."""
        ...

    def how_it_ended(self) -> str:
        """Return what ended it."""
        ...

    def stack(self) -> str:
        """Return what it is doing in one line, the innermost call first."""
        ...


class Launcher(Protocol):
    """Starts collectors."""

    medium: str  # what blocks pass through, as the doctor names it

    def describe(self) -> str:
        """Return where collectors run."""
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
        """Start a collector; its end of the pipe is closed here once it has ended."""
        ...

    def problem(self) -> str | None:
        """Return why no collector can be started any more, None where they can."""
        ...


class LocalLauncher:
    """Starts collectors as processes of this machine."""

    medium = "shared"

    def __init__(self, collect: Callable[..., None] = collector_process.main) -> None:
        """Have processes run ``collect``."""
        self._collect = collect

    def describe(self) -> str:
        """Return where collectors run."""
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
        resource_tracker.ensure_running()  # its own start would unblock signals
        # The new process inherits it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
        try:
            worker.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        connection.close()
        return worker

    def problem(self) -> str | None:
        """Return None: a process can always be started."""
        return None


class LocalWorker(SpawnProcess):
    """A collector's process."""

    def __init__(
        self,
        collect: Callable[..., None],
        arguments: tuple[Any, ...],
        memory: CollectorMemory,
        log: Path,
    ) -> None:
        """Describe a process that runs ``collect``; it is not started yet."""
        super().__init__(
            target=collect, args=arguments, name=f"collector {arguments[1].number}", daemon=True
        )
        self._memory = memory
        self._log = log

    def describe(self) -> str:
        """Return its number."""
        return f"process {self.pid}"

    def how_it_ended(self) -> str:
        """Return its exit code, or what killed it."""
        code = self.exitcode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def stack(self) -> str:
        """Have it write its stack to its log; return that in a line."""
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
        return " < ".join(
            f"{os.path.basename(file)}:{line} {name}" for file, line, name in found[:8]
        )


def make_launcher(cfg: RunCfg) -> AbstractContextManager[Launcher]:
    """Return the launcher of a run's collectors; raise ConfigError on entering it where it cannot
    hold them.
    """
    if cfg.runner.engine == "local":
        return nullcontext(LocalLauncher())
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
    # Ray is an extra.
    return importlib.import_module("harl_mapush.collectors.ray_launcher").RayLauncher(cfg)


def are_elsewhere(cfg: RunCfg) -> bool:
    """Return whether collectors run on other machines, whose memory is unknown here."""
    return cfg.runner.engine == "ray" and ADDRESS in os.environ


def last_line(path: Path) -> str:
    """Return the last line of a file that is neither empty nor part of a stack."""
    lines = [
        line.strip()
        for line in tail(path).splitlines()
        if not line.startswith(("  ", "Current thread", "Stack"))
    ]
    return ([line for line in lines if line] or ["(none)"])[-1][:300]


def tail(path: Path, num_bytes: int = 8192, start: int | None = None) -> str:
    """Return the end of a file, or what it has from byte ``start`` on."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - num_bytes) if start is None else start)
            return file.read().decode(errors="replace")
    except OSError:
        return ""
