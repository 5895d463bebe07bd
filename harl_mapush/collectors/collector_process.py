"""The process of a collector on this machine.

It ends when the learner's process closes the connection, or is gone.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch

from harl_mapush.collectors.collector import (
    BUILDING,
    COLLECTING,
    READY,
    Collector,
    Identity,
    make_collector,
)
from harl_mapush.process import keep_freed_memory, library_lines
from mqe.config import printable

_SIGN_S = 1.0  # between two signs of life


def main(
    settings: Mapping[str, Any],
    identity: Identity,
    connection: Connection,
    log: str,
    make: Callable[[Mapping[str, Any], Identity], Collector] = make_collector,
) -> None:
    """Answer each message of weights with a block, until the learner closes the connection."""
    _settle(log)
    device = torch.device(settings["sim"]["device"])
    try:
        connection.send(BUILDING)
        with library_lines(_say), torch.no_grad(), torch.accelerator.device_index(device.index):
            collector = make(settings, identity)
            _say(f"{collector.env.num_envs} worlds on {collector.env.device}")
            connection.send(READY)
            signs = _Signs(connection)
            while True:
                collector.load(connection.recv())
                connection.send(collector.collect(signs))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        _say("ended with the learner's connection")
    # The libraries' clean-up would take time, and the process holds nothing to be saved.
    os._exit(0)


class _Signs:
    """Sends signs of life during a block. Ends the block once the learner is gone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = time.monotonic()

    def __call__(self, num_decisions: int) -> None:
        # The learner sends nothing during a block, so only a closed connection is readable.
        if self._connection.poll():
            raise EOFError
        now = time.monotonic()
        if now - self._last >= _SIGN_S:
            self._last = now
            self._connection.send(f"{COLLECTING}, decision {num_decisions}")


def _settle(log: str) -> None:
    """Set up the process: output goes to the log, and the process ends with the learner's."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable()
    keep_freed_memory()
    torch.set_num_threads(1)
    _say(f"process {os.getpid()}")


def _say(line: str) -> None:
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()
