"""The end of a rank whose main thread waits on a GPU for a rank that is dead or hangs.

A message between GPUs has no end without the other rank, and Python's signal handlers wait for the
main thread. ``torchrun``, or NCCL after its own time, would end the rank without a word.
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
from typing import Any

import torch.distributed as dist

STUCK_S = 12.0  # in one call after a signal; torchrun kills after 30 s
_LOOK_S = 0.5
_HOST_MESSAGES = str(Path(dist.__file__).parent)  # Their waits end by themselves.


@contextmanager
def ended_if_stuck(
    end: Callable[[], None], patience_s: float, num_messages: Callable[[], int]
) -> Iterator[None]:
    """Context manager: call ``end`` in a thread if the main thread stays in one line of one call
    for ``patience_s``, or after a signal for ``STUCK_S``.

    A message on the host is no such line, and whoever sends messages is not stuck. Only for the
    main thread.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    is_over = threading.Event()
    former = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    arguments = (threading.get_ident(), is_over, end, num_messages)
    threading.Thread(target=_watch, args=(receiver, *arguments), daemon=True).start()
    threading.Thread(target=_end_if_stuck, args=(patience_s, *arguments), daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
        signal.set_wakeup_fd(former)
        sender.close()


def _watch(receiver: socket.socket, *arguments: Any) -> None:
    """Close ``receiver`` at the end alone, since each further signal sends a byte."""
    with receiver:
        receiver.recv(1)
        _end_if_stuck(STUCK_S, *arguments)


def _end_if_stuck(
    limit_s: float,
    thread: int,
    is_over: threading.Event,
    end: Callable[[], None],
    num_messages: Callable[[], int],
) -> None:
    """Call ``end`` once a thread stays in one line for ``limit_s``. Return when the context
    ends.

    A frame that is kept keeps its tensors and their graph, which no CUDA graph can be captured
    beside. So a call is known by its frame's address and the number of messages.
    """
    looks = 0
    position = (0, 0, 0)
    while looks * _LOOK_S < limit_s:
        if is_over.wait(_LOOK_S):
            return
        frame = sys._current_frames()[thread]
        before = position
        position = (id(frame), frame.f_lasti, num_messages())
        is_on_host = frame.f_code.co_filename.startswith(_HOST_MESSAGES + os.sep)
        del frame
        looks = looks + 1 if position == before and not is_on_host else 0
    end()
