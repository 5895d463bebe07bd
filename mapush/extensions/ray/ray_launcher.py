"""Collectors as actors of a Ray cluster (``runner.engine: ray``).

A thread in the learner's process represents each actor. For the pool it is a collector like any
other: it waits for a free block, lets the actor fill one, and copies that into the block. Blocks
and weights are sent as bytes, settings as plain values.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from harl_mapush.collectors.collector import Collector, Identity, make_collector
from harl_mapush.collectors.collector_process import EndRequestedError, end_if_asked, wait_for_block
from harl_mapush.collectors.launcher import NO_ANSWER
from harl_mapush.collectors.shared_memory import (
    CollectorMemory,
    Phase,
    SharedWeights,
    Slot,
    load_weights,
)
from harl_mapush.config import RunCfg
from harl_mapush.process import keep_freed_memory, library_lines
from mapush.extensions.ray.cluster import (
    answers,
    check_room,
    connect,
    cpus_of,
    first_sentence,
    leave,
    name_of,
    nodes,
    signal_handlers_kept,
)
from mqe.config import ConfigError

# Bytes of the object store of a Ray on this machine alone; it has the blocks on their way.
_OBJECT_STORE = 200 * 2**20
# Ray ends a process that has not reached the head for 60 s, so failures are found earlier.
_HEAD_EVERY_S = 4.0
_HEAD_TRIES = 5
_LOOK_S = 0.2  # between two checks for an end
_PROGRESS_S = 1.0  # between two requests for an actor's progress
_ANSWER_S = 2.0  # longest wait for a stack
NOT_MADE = "it could not be made"
_CONTROL = "control"  # name of the threads of an actor that answer while it collects


class RayCollector:
    """A collector in the process of a Ray actor."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        identity: Identity,
        slots: tuple[Sequence[Slot], Sequence[Slot]],
        make: Callable[[Mapping[str, Any], Identity], Collector],
    ) -> None:
        """Store the arguments; ``slots`` are the learner's, of a block and of the weights."""
        self._settings = settings
        self._identity = identity
        self._slots = slots
        self._make = make
        self._thread = 0
        self._step = 0
        self._num_decisions = 0
        self._lines: list[str] = []

    def where(self) -> tuple[int, str]:
        """Return the number of the process and the address of the machine."""
        return os.getpid(), ray.util.get_node_ip_address()

    def build(self) -> None:
        """Build the worlds.

        Raises RuntimeError if the layout of blocks or weights differs from the learner's.
        """
        self._thread = threading.get_ident()
        keep_freed_memory()
        torch.set_num_threads(1)
        with library_lines(self._lines.append), torch.no_grad():
            self._collector = collector = self._make(self._settings, self._identity)
            weights = SharedWeights(collector.actors)
        weights.memory.close()
        if (collector.layout.slots, weights.slots) != self._slots:
            raise RuntimeError(
                f"{ray.util.get_node_ip_address()} has another version of MAPush than the learner"
            )
        self._block = torch.zeros(collector.layout.num_bytes, dtype=torch.uint8)
        self._lines.append(f"{collector.env.num_envs} worlds on {collector.env.device}")

    def collect(self, weights: np.ndarray, num_updates: int) -> tuple[np.ndarray, tuple[Any, ...]]:
        """Collect by ``weights`` (bytes); return a block (bytes) and its report."""
        self._thread = threading.get_ident()
        collector = self._collector
        with library_lines(self._lines.append), torch.no_grad():
            load_weights(self._slots[1], torch.tensor(weights), collector.actors)
            collector.team.num_updates = num_updates
            report = collector.collect(self._block, self._count)
        return self._block.numpy(), tuple(report)

    def progress(self) -> tuple[int, int, list[str]]:
        """Return the numbers of decisions of this block and in all, and new lines of the log."""
        lines = self._lines[:]
        del self._lines[: len(lines)]
        return self._step, self._num_decisions, lines

    def stack(self) -> str:
        """Return the stack of the collecting thread as one line."""
        return stack_of_thread(self._thread)

    def _count(self, step: int) -> None:
        self._step = step
        self._num_decisions = self._num_decisions + 1


class RayLauncher:
    """Starts collectors on the cluster at RAY_ADDRESS, or by Ray on this machine alone."""

    medium = "Ray"

    def __init__(
        self, cfg: RunCfg, make: Callable[[Mapping[str, Any], Identity], Collector] = make_collector
    ) -> None:
        """Prepare the launcher for ``cfg``, a result of ``settled``; entering it connects."""
        self._num_collectors = cfg.runner.collectors
        self.num_cpus = cfg.sim.num_threads
        self._make = make
        self._problem: str | None = None
        self._is_over = threading.Event()

    def __enter__(self) -> RayLauncher:
        """Join the cluster; raise ConfigError if it is unreachable or too small."""
        with signal_handlers_kept():
            self._session = connect(
                num_cpus=self._num_collectors * self.num_cpus, object_store_memory=_OBJECT_STORE
            )
        try:
            self._check_room()
        except ConfigError:
            leave(self._session)
            raise
        self._head = ray.get_runtime_context().gcs_address
        threading.Thread(target=self._watch_head, name="ray head", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the cluster; a Ray that was started for this run ends."""
        self._is_over.set()
        with signal_handlers_kept():
            leave(self._session)

    def describe(self) -> str:
        """Return the place of the collectors, as words."""
        there = ", ".join(f"{name_of(node)} ({cpus_of(node):g} CPUs)" for node in nodes())
        return f"Ray {ray.__version__} at {self._head}: {there}"

    def start(
        self,
        settings: Mapping[str, Any],
        identity: Identity,
        connection: Connection,
        memory: CollectorMemory,
        weights: SharedWeights,
        log: Path,
    ) -> RayWorker:
        """Start the thread of a collector, which asks Ray for an actor."""
        remote: Any = ray.remote  # its types do not include concurrency groups
        kind = remote(concurrency_groups={_CONTROL: 2})(RayCollector)
        where = {"num_cpus": self.num_cpus, "scheduling_strategy": "SPREAD"}
        slots = (memory.layout.slots, weights.slots)
        worker = RayWorker(
            self,
            lambda: kind.options(**where, max_restarts=0).remote(
                dict(settings), identity, slots, self._make
            ),
            connection,
            memory,
            weights,
            log,
        )
        worker.start()
        return worker

    def problem(self) -> str | None:
        """Return the reason if the cluster cannot be used any more, else None."""
        return self._problem

    def _check_room(self) -> None:
        check_room(
            self._num_collectors, self.num_cpus, {name_of(node): cpus_of(node) for node in nodes()}
        )

    def _watch_head(self) -> None:
        """Watch the head and this machine's Ray; store the problem if one of them is gone.

        Otherwise Ray would end this process without a message.
        """
        mine = ray.get_runtime_context().get_node_id()
        failures = 0
        while not self._is_over.wait(_HEAD_EVERY_S):
            failures = 0 if answers(self._head) else failures + 1
            if failures >= _HEAD_TRIES:
                self._problem = (
                    f"the head of the Ray cluster, {self._head}, does not answer any more"
                )
            elif not failures and mine not in [node["NodeID"] for node in nodes()]:
                self._problem = "this machine does not belong to the Ray cluster any more"
            if self._problem is not None:
                return


class RayWorker(threading.Thread):
    """The thread that represents a collector on a Ray cluster."""

    def __init__(
        self,
        launcher: RayLauncher,
        make_actor: Callable[[], Any],
        connection: Connection,
        memory: CollectorMemory,
        weights: SharedWeights,
        log: Path,
    ) -> None:
        """Represent the actor that ``make_actor`` requests from Ray."""
        super().__init__(name=f"collector {log.stem}", daemon=True)
        self._make_actor = make_actor
        self._actor: Any = None
        self._launcher = launcher
        self._connection = connection
        self._log = log
        self._memory = memory
        self._weights = weights
        self._where = "not placed yet"
        self._how = "it ended"
        self._is_killed = threading.Event()
        self._progress: Any = None  # the pending request for the actor's progress
        self._asked_s = 0.0
        self._num_before = memory.numbers().num_decisions

    def run(self) -> None:
        """Collect until an end is requested, or the actor is gone."""
        try:
            self._collect()
        except RayTaskError as error:  # must precede OSError, which some of these errors are too
            self._how = type(error.cause).__name__ if error.cause is not None else "it failed"
            self._say(str(error))
        except RayActorError as error:
            if isinstance(error, ActorUnavailableError):
                self._how = "Ray cannot reach it any more"
            else:
                self._how = how_an_actor_died(str(error))
            if self._how == NOT_MADE:
                self._say(str(error))
        except (EndRequestedError, EOFError, OSError):
            pass
        except Exception as error:
            self._how = f"{type(error).__name__}: {first_sentence(str(error))}"
        finally:
            if self._actor is not None and self._launcher.problem() is None:
                ray.kill(self._actor)
            self._memory.set(phase=Phase.ENDED)
            self._connection.close()

    def kill(self) -> None:
        """Request that the actor be killed, without waiting for it."""
        self._is_killed.set()

    def describe(self) -> str:
        """Return the actor's process and machine."""
        return self._where

    def how_it_ended(self) -> str:
        """Return the cause of the actor's end."""
        return self._how

    def stack(self) -> str:
        """Return the stack of the actor's collecting thread."""
        if self._memory.numbers().phase == Phase.PLACING:
            return "none yet"
        try:
            return ray.get(self._control("stack"), timeout=_ANSWER_S)
        except RayError:
            return NO_ANSWER

    def _collect(self) -> None:
        memory = self._memory
        memory.set(phase=Phase.PLACING)
        number, machine = self._place()
        self._where = f"process {number} on {machine}"
        self._say(self._where)
        memory.set(phase=Phase.BUILDING)
        self._result(self._actor.build.remote(), self._follow)
        num_blocks = 0
        while True:
            number = wait_for_block(self._connection, memory)
            copied, version, num_updates = self._weights.copy()
            memory.versions[number] = version
            memory.set(phase=Phase.COLLECTING, step=0, version=version)
            content, report = self._result(
                self._actor.collect.remote(copied.numpy(), num_updates), self._follow
            )
            memory.blocks[number].numpy()[:] = content
            num_blocks += 1
            memory.set(num_decisions=self._num_before + num_blocks * memory.layout.num_steps)
            memory.add(num_sent=1)
            self._connection.send((number, version, report))

    def _place(self) -> tuple[int, str]:
        """Return the process and machine of an actor that Ray placed.

        It may take several attempts, since Ray notices late that a machine is gone.
        """
        while True:
            self._say(f"asked Ray for {self._launcher.num_cpus} CPUs")
            self._actor = self._make_actor()
            try:
                return self._result(self._control("where"))
            except RayActorError as error:
                if how_an_actor_died(str(error)) == NOT_MADE:
                    raise
            ray.kill(self._actor)
            time.sleep(_PROGRESS_S)

    def _result(self, reference: Any, meanwhile: Callable[[], None] = lambda: None) -> Any:
        """Wait for the result of an actor's method, and return it."""
        while not ray.wait([reference], timeout=_LOOK_S)[0]:
            end_if_asked(self._memory)
            if self._is_killed.is_set():
                self._how = "killed"
                raise EndRequestedError
            if self._launcher.problem() is not None:
                raise EndRequestedError
            meanwhile()
        return ray.get(reference)

    def _follow(self) -> None:
        """Copy the actor's counters and log lines into this process when they arrive."""
        if self._progress is None:
            if time.monotonic() - self._asked_s >= _PROGRESS_S:
                self._progress = self._control("progress")
                self._asked_s = time.monotonic()
        elif ray.wait([self._progress], timeout=0)[0]:
            step, num_decisions, lines = ray.get(self._progress)
            self._progress = None
            self._memory.set(step=step, num_decisions=self._num_before + num_decisions)
            for line in lines:
                self._say(line)

    def _control(self, method: str) -> Any:
        return getattr(self._actor, method).options(concurrency_group=_CONTROL).remote()

    def _say(self, line: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{line}\n")


def stack_of_thread(thread: int) -> str:
    """Return the stack of a thread of this process as one line, the innermost call first."""
    frame = sys._current_frames().get(thread)
    stack = traceback.extract_stack(frame)[-8:] if frame is not None else []
    calls = [f"{os.path.basename(at.filename)}:{at.lineno} {at.name}" for at in reversed(stack)]
    return " < ".join(calls) if calls else "none"


def how_an_actor_died(words: str) -> str:
    """Return the reason in Ray's message about a dead actor."""
    _, found, reason = " ".join(words.split()).partition("The actor is dead because ")
    if "creation task" in words:
        return NOT_MADE
    return first_sentence(reason if found else words)
