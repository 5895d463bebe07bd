"""The process of a collector; it ends at the learner's request, or when that process is gone."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch

from harl_mapush.collectors.collector import Collector, Identity, make_collector
from harl_mapush.collectors.shared_memory import CollectorMemory, Phase, SharedWeights
from harl_mapush.process import keep_freed_memory, library_lines

STACK_SIGNAL = signal.SIGUSR1  # makes a collector write its stack to its log


def main(
    settings: Mapping[str, Any],
    identity: Identity,
    connection: Connection,
    memory: CollectorMemory,
    weights: SharedWeights,
    log: str,
    make: Callable[[Mapping[str, Any], Identity], Collector] = make_collector,
) -> None:
    """Collect until an end is requested.

    The learner's process sends the numbers of free blocks, and receives them when the blocks are
    full.
    """
    _settle(log)
    memory.set(phase=Phase.BUILDING)
    device = torch.device(settings["sim"]["device"])
    with library_lines(_say), torch.no_grad(), torch.accelerator.device_index(device.index):
        collector = make(settings, identity)
        _say(f"{collector.env.num_envs} worlds on {collector.env.device}")

        def after_decision(_: int) -> None:
            memory.add(num_decisions=1, step=1)
            end_if_asked(memory)

        try:
            while True:
                block = wait_for_block(connection, memory)
                version, collector.team.num_updates = weights.read(collector.actors)
                memory.versions[block] = version
                memory.set(phase=Phase.COLLECTING, step=0, version=version)
                report = collector.collect(memory.blocks[block], after_decision)
                memory.add(num_sent=1)
                connection.send((block, version, tuple(report)))
        except EndRequestedError:
            _say("ended")
        except (EOFError, BrokenPipeError, ConnectionResetError):
            _say("the learner's process is gone")
        finally:
            memory.set(phase=Phase.ENDED)
    # The libraries' clean-up would take time, and the process holds nothing to be saved.
    os._exit(0)


class EndRequestedError(Exception):
    """The learner's process requested the end of a collector."""


def end_if_asked(memory: CollectorMemory) -> None:
    """Raise EndRequestedError if the learner's process requested an end."""
    if memory.numbers().must_end:
        raise EndRequestedError


def wait_for_block(connection: Connection, memory: CollectorMemory) -> int:
    """Wait for the number of a free block, and return it; the waiting time is counted."""
    memory.set(phase=Phase.WAITING)
    start = time.monotonic_ns()
    while True:
        end_if_asked(memory)
        is_there = connection.poll(0.2)
        now = time.monotonic_ns()
        memory.add(waited_ns=now - start)
        if is_there:
            return connection.recv()
        start = now


def _settle(log: str) -> None:
    """Set up the process: output goes to the log, and the process ends with the learner's."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL, all_threads=False)
    # The launcher started this process with all ending signals blocked.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {STACK_SIGNAL})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    torch.set_num_threads(1)
    _say(f"process {os.getpid()}")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
