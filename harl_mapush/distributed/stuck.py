"""The end of a rank whose main thread waits on a GPU for a rank that is dead or hangs.

A message between GPUs has no end without the other rank, and Python's signal handlers wait for the
main thread. ``torchrun``, or NCCL after its own time, would end the rank without a word.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
    former = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    arguments = (receiver, threading.get_ident(), end, patience_s, num_messages)
    threading.Thread(target=_end_if_stuck, args=arguments, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(former)
        sender.shutdown(socket.SHUT_WR)  # also for copies in forked processes
        sender.close()


def _end_if_stuck(
    receiver: socket.socket,
    thread: int,
    end: Callable[[], None],
    limit_s: float,
    num_messages: Callable[[], int],
) -> None:
    """Call ``end`` once a thread stays in one line for ``limit_s``. Return when the context
    ends. Each signal sends a byte to ``receiver``.

    A frame that is kept keeps its tensors and their graph, which no CUDA graph can be captured
    beside. So a call is known by its frame's address and the number of messages.
    """
    looks = 0
    position = (0, 0, 0)
    receiver.settimeout(_LOOK_S)
    with receiver:
        while looks * _LOOK_S < limit_s:
            try:
                if not receiver.recv(1):
                    return
                if limit_s > STUCK_S:
                    limit_s = STUCK_S
                    looks = 0
            except TimeoutError:
                frame = sys._current_frames()[thread]
                before = position
                position = (id(frame), frame.f_lasti, num_messages())
                is_on_host = frame.f_code.co_filename.startswith(_HOST_MESSAGES + os.sep)
                del frame
                looks = looks + 1 if position == before and not is_on_host else 0
        end()
