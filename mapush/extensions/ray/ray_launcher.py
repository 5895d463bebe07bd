"""Collectors as actors of a Ray cluster (``runner.engine: ray``)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from harl_mapush.collectors.collector import (
    BUILDING,
    COLLECTING,
    READY,
    Block,
    Collector,
    Identity,
    Weights,
    make_collector,
)
from harl_mapush.collectors.launchers import CollectionError, WorkerGoneError
from harl_mapush.config import RunCfg
from harl_mapush.process import keep_freed_memory, library_lines, say
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
_PROGRESS_S = 1.0  # between two requests for an actor's progress
PLACING = "waiting for a place in the cluster"  # a sign of life
NOT_MADE = "it could not be made"
_CONTROL = "control"  # name of the threads of an actor that answer while it collects


class RayCollector:
    """A collector in the process of a Ray actor."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        identity: Identity,
        make: Callable[[Mapping[str, Any], Identity], Collector],
    ) -> None:
        """Store the arguments for ``make``. It builds the collector."""
        self._settings = settings
        self._identity = identity
        self._make = make
        self._num_decisions = 0
        self._lines: list[str] = []

    def where(self) -> tuple[int, str]:
        """Return the process's number and the machine's address."""
        return os.getpid(), ray.util.get_node_ip_address()

    def build(self) -> None:
        """Build the worlds."""
        keep_freed_memory()
        torch.set_num_threads(1)
        with library_lines(self._lines.append), torch.no_grad():
            self._collector = collector = self._make(self._settings, self._identity)
        self._lines.append(f"{collector.env.num_envs} worlds on {collector.env.device}")

    def collect(self, weights: Weights) -> Block:
        """Collect a block of decisions by ``weights``."""
        with library_lines(self._lines.append), torch.no_grad():
            self._collector.load(weights)
            return self._collector.collect(self._count)

    def progress(self) -> tuple[int, list[str]]:
        """Return the number of decisions so far, and new lines of the log."""
        lines = self._lines[:]
        del self._lines[: len(lines)]
        return self._num_decisions, lines

    def _count(self, step: int) -> None:
        self._num_decisions += 1


class RayLauncher:
    """Starts collectors on the cluster at RAY_ADDRESS, or by Ray on this machine alone."""

    def __init__(
        self, cfg: RunCfg, make: Callable[[Mapping[str, Any], Identity], Collector] = make_collector
    ) -> None:
        """Prepare the launcher for a ``cfg`` from ``settled``. Entering it connects."""
        self._num_collectors = cfg.runner.collectors
        self.num_cpus = cfg.sim.num_threads
        self._make = make
        self._problem: str | None = None
        self._is_over = threading.Event()

    def __enter__(self) -> RayLauncher:
        """Join the cluster. Raise ConfigError if it is unreachable or too small."""
        with signal_handlers_kept():
            self._session = connect(
                num_cpus=self._num_collectors * self.num_cpus, object_store_memory=_OBJECT_STORE
            )
        try:
            cpus = {name_of(node): cpus_of(node) for node in nodes()}
            check_room(self._num_collectors, self.num_cpus, cpus)
        except ConfigError:
            leave(self._session)
            raise
        self._head = ray.get_runtime_context().gcs_address
        threading.Thread(target=self._watch_head, name="ray head", daemon=True).start()
        machines = ", ".join(f"{name} ({number:g} CPUs)" for name, number in cpus.items())
        say(f"Collectors on Ray {ray.__version__} at {self._head}: {machines}.")
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the cluster, and end a Ray started for this run."""
        self._is_over.set()
        with signal_handlers_kept():
            leave(self._session)

    def start(self, settings: Mapping[str, Any], identity: Identity, log: Path) -> RayWorker:
        """Request an actor. Ray places it later."""
        remote: Any = ray.remote  # its types do not include concurrency groups
        kind = remote(concurrency_groups={_CONTROL: 2})(RayCollector)
        options = {
            "num_cpus": self.num_cpus,
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
        }
        make = self._make
        return RayWorker(
            lambda: kind.options(**options).remote(dict(settings), identity, make),
            self.problem,
            log,
        )

    def wait(self, workers: Sequence[RayWorker], timeout_s: float) -> None:
        """Wait for a result of one of the actors."""
        references = [worker.reference for worker in workers if worker.reference is not None]
        if references:
            ray.wait(references, timeout=timeout_s)
        else:
            time.sleep(timeout_s)

    def problem(self) -> str | None:
        """Return the reason if the cluster cannot be used any more, else None."""
        return self._problem

    def _watch_head(self) -> None:
        """Watch the head and this machine's Ray. Store the problem if either is gone.

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


class RayWorker:
    """A collector on a Ray cluster: Ray places it, then it builds its worlds and collects."""

    def __init__(
        self, make_actor: Callable[[], Any], problem: Callable[[], str | None], log: Path
    ) -> None:
        """Prepare a worker. ``make_actor`` requests its actor from Ray.

        ``problem`` returns the reason if the cluster cannot be used any more.
        """
        self._make_actor = make_actor
        self._problem = problem
        self._log = log
        self._actor: Any = None
        self._where = "not placed yet"
        self._activity = PLACING
        self.reference: Any = None  # the pending result of the activity
        self._progress: Any = None  # the pending request for the actor's progress
        self._progress_s = 0.0  # time of the last request
        self._num_decisions = 0

    def send(self, weights: Weights) -> None:
        """Send the actors' ``weights``, and request a block of decisions."""
        self._activity = COLLECTING
        self.reference = self._actor.collect.remote(weights)

    def receive(self) -> Block | str | None:
        """Return a block or a sign of life, None if there is neither."""
        problem = self._problem()
        if problem is not None:
            raise CollectionError(problem)
        try:
            if self.reference is None:
                if self._activity != PLACING:
                    return None  # no block is requested
                self._say("asked Ray for an actor")
                self._actor = self._make_actor()
                self.reference = self._control("where")
            if not ray.wait([self.reference], timeout=0)[0]:
                return PLACING if self._activity == PLACING else self._sign()
            return self._result(ray.get(self.reference))
        except RayTaskError as error:  # must precede OSError, which some of these errors are too
            self._say(str(error))
            cause = "it failed" if error.cause is None else type(error.cause).__name__
            raise WorkerGoneError(cause) from None
        except ActorUnavailableError:
            raise WorkerGoneError("Ray cannot reach it any more") from None
        except RayActorError as error:
            cause = how_an_actor_died(str(error))
            if cause == NOT_MADE:
                self._say(str(error))
            elif self._activity == PLACING:
                # Ray notices late that a machine is gone.
                ray.kill(self._actor)
                self.reference = None
                return PLACING
            raise WorkerGoneError(cause) from None
        except (RayError, RuntimeError, OSError) as error:
            cause = f"{type(error).__name__}: {first_sentence(str(error))}"
            raise WorkerGoneError(cause) from None

    def describe(self) -> str:
        """Return the actor's process and machine."""
        return self._where

    def end(self, timeout_s: float) -> None:
        """Kill the actor. It holds nothing to be saved."""
        if self._actor is not None and self._problem() is None:
            ray.kill(self._actor)

    def _result(self, result: Any) -> Block | str:
        """Return a block, or begin the next activity and return a sign of life."""
        if self._activity == PLACING:
            number, machine = result
            self._where = f"process {number} on {machine}"
            self._say(self._where)
            self._activity = BUILDING
            self.reference = self._actor.build.remote()
            return BUILDING
        self.reference = None
        self._drain(ray.get(self._control("progress")))
        if self._activity == BUILDING:
            return READY
        # Arrays of the object store are read-only, and occupy it.
        return Block(tuple(np.array(array) for array in result.arrays), result.report)

    def _sign(self) -> str | None:
        """Return a sign of life if the actor has taken further decisions, else None."""
        if self._progress is None:
            if time.monotonic() - self._progress_s >= _PROGRESS_S:
                self._progress = self._control("progress")
                self._progress_s = time.monotonic()
            return None
        if not ray.wait([self._progress], timeout=0)[0]:
            return None
        before = self._num_decisions
        self._drain(ray.get(self._progress))
        self._progress = None
        if self._num_decisions == before:
            return None
        return f"{COLLECTING}, decision {self._num_decisions}"

    def _drain(self, progress: tuple[int, list[str]]) -> None:
        self._num_decisions, lines = progress
        for line in lines:
            self._say(line)

    def _control(self, method: str) -> Any:
        return getattr(self._actor, method).options(concurrency_group=_CONTROL).remote()

    def _say(self, line: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{line}\n")


def how_an_actor_died(words: str) -> str:
    """Return the reason in Ray's message about a dead actor."""
    _, separator, reason = " ".join(words.split()).partition("The actor is dead because ")
    if "creation task" in words:
        return NOT_MADE
    return first_sentence(reason if separator else words)
