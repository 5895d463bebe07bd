"""The end of a rank whose main thread waits on a GPU for a rank that is dead.

A message between GPUs has no end without the other rank, and Python's signal handlers wait for the
main thread. ``torchrun`` would kill the rank without a word.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch.distributed as dist

STUCK_S = 12.0  # in one call after a signal; torchrun kills after 30 s
_LOOKS = 24
_HOST_MESSAGES = str(Path(dist.__file__).parent)  # Their waits end by themselves.


@contextmanager
def ended_if_stuck(end: Callable[[], None]) -> Iterator[None]:
    """Context manager: call ``end`` in a thread if, after a signal, the main thread stays in one
    line of one call for ``STUCK_S``.

    A message on the host is no such line. Only for the main thread.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    is_over = threading.Event()
    former = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    arguments = (receiver, is_over, threading.get_ident(), end)
    threading.Thread(target=_watch, args=arguments, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
        signal.set_wakeup_fd(former)
        sender.close()


def _watch(
    receiver: socket.socket, is_over: threading.Event, thread: int, end: Callable[[], None]
) -> None:
    """Close ``receiver`` at the end alone, since each further signal sends a byte."""
    with receiver:
        receiver.recv(1)
        if _is_stuck(thread, is_over):
            end()


def _is_stuck(thread: int, is_over: threading.Event) -> bool:
    """Wait until a thread stays in one line for ``STUCK_S``. Return False when the context ends."""
    looks = 0
    position: tuple[FrameType, int] | None = None
    while looks < _LOOKS:
        if is_over.wait(STUCK_S / _LOOKS):
            return False
        frame = sys._current_frames()[thread]
        before = position
        position = (frame, frame.f_lasti)
        is_same = before is not None and before[0] is frame and before[1] == frame.f_lasti
        is_on_host = frame.f_code.co_filename.startswith(_HOST_MESSAGES + os.sep)
        looks = looks + 1 if is_same and not is_on_host else 0
    return True
