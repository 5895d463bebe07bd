"""Collectors as actors of a Ray cluster (``runner.engine: ray``)."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from harl_mapush.collectors.collector import BlockReport, Collector, Identity, make_collector
from harl_mapush.collectors.exchange import Channel, State, new_block
from harl_mapush.collectors.launchers import CollectionError, FullBlock, WorkerGoneError
from harl_mapush.config import RunCfg
from harl_mapush.process import keep_freed_memory, say
from mapush.extensions.ray.cluster import (
    answers,
    check_room,
    connect,
    cpus_of,
    first_sentence,
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
NOT_MADE = "it could not be made"
_CONTROL = "control"  # name of the thread of an actor that answers while it collects


class RayCollector:
    """A collector in the process of a Ray actor."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        identity: Identity,
        make: Callable[[Mapping[str, Any], Identity], Collector],
    ) -> None:
        """Build the worlds with ``make``."""
        keep_freed_memory()
        torch.set_num_threads(1)
        self._num_decisions = 0
        with torch.no_grad():
            self._collector = collector = make(settings, identity)
        shape = collector.team.replay_shape(collector.env.num_envs)
        self._block = new_block(shape, collector.num_steps)

    def describe(self) -> str:
        """Return the process and its machine."""
        return f"process {os.getpid()} on {ray.util.get_node_ip_address()}"

    def collect(
        self, weights: Sequence[State], num_updates: int
    ) -> tuple[list[np.ndarray], BlockReport, int]:
        """Collect a block with ``weights``. Return its fields, its report and all decisions."""
        with torch.no_grad():
            self._collector.load(weights, num_updates)
            report = self._collector.collect(self._block, self._count)
        return [values.numpy() for values in self._block], report, self._num_decisions

    def num_decisions(self) -> int:
        """Return the number of decisions so far."""
        return self._num_decisions

    def _count(self) -> None:
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
            connect(
                num_cpus=self._num_collectors * self.num_cpus, object_store_memory=_OBJECT_STORE
            )
        try:
            cpus = {name_of(node): cpus_of(node) for node in nodes()}
            check_room(self._num_collectors, self.num_cpus, cpus)
        except ConfigError:
            ray.shutdown()
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
            ray.shutdown()

    def start(
        self, settings: Mapping[str, Any], identity: Identity, channel: Channel, log: Path
    ) -> RayWorker:
        """Request an actor. Ray places it later."""
        remote: Any = ray.remote  # its types do not include concurrency groups
        kind = remote(concurrency_groups={_CONTROL: 1})(RayCollector)
        options = {
            "num_cpus": self.num_cpus,
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
        }
        actor = kind.options(**options).remote(dict(settings), identity, self._make)
        return RayWorker(actor, channel, lambda: self._problem, log)

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
    """A collector on a Ray cluster. Its results are copied into the blocks of a channel."""

    def __init__(
        self, actor: Any, channel: Channel, problem: Callable[[], str | None], log: Path
    ) -> None:
        """Use ``actor``. ``problem`` returns the reason if the cluster cannot be used any more."""
        self._actor = actor
        self._channel = channel
        self._problem = problem
        self._log = log
        self._free: deque[int] = deque()
        self._where: str | None = None  # process and machine, once the worlds are built
        self._idle_s = 0.0  # time of the last result
        self._start_s = 0.0  # time of the last request for a block
        self._progress: Any = None  # the pending request for the number of decisions
        self._progress_s = 0.0  # time of the last request
        self._result: Any = actor.describe.remote()  # the pending description or block

    def free(self, number: int) -> None:
        """Return a block to the actor."""
        self._free.append(number)

    def receive(self) -> FullBlock | None:
        """Return the next full block, None without any."""
        problem = self._problem()
        if problem is not None:
            raise CollectionError(problem)
        try:
            return self._receive()
        except RayTaskError as error:  # must precede OSError, which some of these errors are too
            self._say(str(error))
            cause = "it failed" if error.cause is None else type(error.cause).__name__
        except ActorUnavailableError:
            cause = "Ray cannot reach it any more"
        except RayActorError as error:
            cause = how_an_actor_died(str(error))
            if cause == NOT_MADE:
                self._say(str(error))
        except (RayError, RuntimeError, OSError) as error:
            cause = f"{type(error).__name__}: {first_sentence(str(error))}"
        raise WorkerGoneError(cause)

    def describe(self) -> str:
        """Return the actor's process and machine."""
        return self._where or "not placed yet"

    def end(self) -> None:
        """Kill the actor. It holds nothing to be saved."""
        if self._problem() is None:
            ray.kill(self._actor)

    def _receive(self) -> FullBlock | None:
        """Advance by one step: the end of the building, a request for a block, or its result."""
        if self._result is None:
            if self._free:
                self._start_s = time.monotonic()
                version = int(self._channel.stamps[1])
                self._channel.counts[1] = version
                self._result = self._actor.collect.remote(self._channel.weights, version)
            return None
        if not ray.wait([self._result], timeout=0)[0]:
            self._count_decisions()
            return None
        result: Any = ray.get(self._result)
        self._result = None
        idle_s = self._idle_s
        self._idle_s = time.monotonic()
        if self._where is None:
            self._where = result
            self._channel.counts[0] = 0
            self._say(result)
            return None

        arrays, report, self._channel.counts[0] = result
        number = self._free.popleft()
        for values, array in zip(self._channel.block(number), arrays, strict=True):
            np.copyto(values.numpy(), array)
        return FullBlock(number, report, self._start_s - idle_s, self._idle_s - idle_s)

    def _count_decisions(self) -> None:
        """Ask for the number of decisions now and then."""
        if self._where is None:
            return  # An actor without worlds cannot answer.
        if self._progress is None:
            if time.monotonic() - self._progress_s >= _PROGRESS_S:
                control = self._actor.num_decisions.options(concurrency_group=_CONTROL)
                self._progress = control.remote()
                self._progress_s = time.monotonic()
        elif ray.wait([self._progress], timeout=0)[0]:
            # A block may have brought a later number.
            self._channel.counts[0] = max(ray.get(self._progress), int(self._channel.counts[0]))
            self._progress = None

    def _say(self, line: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{line}\n")


def how_an_actor_died(words: str) -> str:
    """Return the reason in Ray's message about a dead actor."""
    _, separator, reason = " ".join(words.split()).partition("The actor is dead because ")
    if "creation task" in words:
        return NOT_MADE
    return first_sentence(reason if separator else words)
