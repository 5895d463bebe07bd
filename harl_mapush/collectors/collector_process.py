"""The process of a collector. It ends with the learner's process."""

import faulthandler
import os
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch

from harl_mapush.collectors.collector import Collector, Identity, make_collector
from harl_mapush.collectors.exchange import Channel
from harl_mapush.process import end_with_parent, keep_freed_memory, library_lines, say


def main(
    settings: Mapping[str, Any],
    identity: Identity,
    channel: Channel,
    connection: Connection,
    log: str,
    make: Callable[[Mapping[str, Any], Identity], Collector] = make_collector,
) -> None:
    """Run a collector. Receive the numbers of free blocks from ``connection``, and send each back
    once it is full, with its report and two times: waiting, and in all [s].
    """
    _settle(log)
    device = torch.device(settings["sim"]["device"])
    with library_lines(say), torch.no_grad(), torch.accelerator.device_index(device.index):
        collector = make(settings, identity)
        say(f"{collector.env.num_envs} worlds on {collector.env.device}")
        channel.counts[0] = 0
        while True:
            begin_s = time.monotonic()
            number = connection.recv()
            start_s = time.monotonic()
            load_newest(collector, channel)
            report = collector.collect(channel.block(number), lambda: channel.counts[0].add_(1))
            cycle_s = time.monotonic() - begin_s
            connection.send((number, report, start_s - begin_s, cycle_s))


def load_newest(collector: Collector, channel: Channel) -> None:
    """Load the newest weights. Repeat it if the learner replaces them meanwhile."""
    is_whole = False
    while not is_whole:
        num_updates = int(channel.stamps[1])
        collector.load(channel.weights, num_updates)
        is_whole = int(channel.stamps[0]) == num_updates
    channel.counts[1] = num_updates


def _settle(log: str) -> None:
    """Set up the process: output goes to the log, and the process ends with the learner's."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable()
    end_with_parent()
    keep_freed_memory()
    torch.set_num_threads(1)
    say(f"process {os.getpid()}")
