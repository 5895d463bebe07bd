"""Settings of the whole process: kept memory, torch's threads, the seed, and the library's
messages.
"""

import ctypes
import logging
import multiprocessing
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection

import numpy
import torch

from mqe.config import printable
from mqe.cores import num_cores

_MIB = 2**20

# Parameters of mallopt, from malloc.h.
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_THRESHOLD = -3

_KEPT = 1024 * _MIB  # freed memory up to this size is kept
_KEPT_BY_OLDER_GLIBC = 32 * _MIB  # largest value in older versions
_GROWTH = 64 * _MIB  # additional memory with every request to the system


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory, and return whether glibc does.

    By default glibc maps every allocation beyond 32 MiB anew and returns freed memory to the
    system. The system clears each page at its first touch, which can take a third of an update's
    time. Nothing is changed without glibc, or if the variables ``MALLOC_...`` or ``GLIBC_TUNABLES``
    are set.
    """
    if "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    is_set = mallopt(_MMAP_THRESHOLD, _KEPT) or mallopt(_MMAP_THRESHOLD, _KEPT_BY_OLDER_GLIBC)
    return bool(is_set and mallopt(_TRIM_THRESHOLD, _KEPT) and mallopt(_TOP_PAD, _GROWTH))


def limit_threads(num_threads: int | None = None) -> None:
    """Set the number of torch's threads, by default at most the cores available to this process.

    Torch's own default is one for each core in the machine, even if the process may use the cores
    for only part of the time.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    elif torch.get_num_threads() > num_cores():
        torch.set_num_threads(num_cores())


def end_with_parent() -> None:
    """End this process as soon as the process that spawned it is gone."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def write_error(program: str, line: str) -> None:
    """Write a program's last line on stderr, without control characters and line breaks."""
    sys.stderr.write(f"{program}: {printable(' '.join(line.split()))}\n")


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch. Torch's generator draws the initial weights."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def say(text: str) -> None:
    """Write lines to standard output, with escape sequences in names as text."""
    sys.stdout.write("\n".join(map(printable, text.split("\n"))) + "\n")
    sys.stdout.flush()


@contextmanager
def library_lines(say: Callable[[str], None]) -> Iterator[None]:
    """Context manager: pass the library's log messages, such as warnings about broken worlds, to
    ``say``.
    """
    handler = _Lines(say)
    libraries = [logging.getLogger(name) for name in ("mqe", "harl_mapush")]
    levels = [library.level for library in libraries]
    for library in libraries:
        library.addHandler(handler)
        library.setLevel(logging.INFO)
    try:
        yield
    finally:
        for library, level in zip(libraries, levels, strict=True):
            library.removeHandler(handler)
            library.setLevel(level)


class _Lines(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())
