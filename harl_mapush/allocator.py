"""Memory that the process keeps: large tensors on a CPU come and go in every pass."""

from __future__ import annotations

import ctypes
import os

_MIB = 2**20
# of malloc.h
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_THRESHOLD = -3
_KEPT = 1024 * _MIB
_GROWTH = 64 * _MIB
_MOST = 32 * _MIB  # what older glibc takes as a threshold


def keep_freed_memory() -> bool:
    """Make glibc keep freed blocks, and return whether it does.

    By default it maps every block beyond 32 MiB anew and returns it to the system when it is freed.
    The system clears each page at its first touch, which can take a third of an update's time.
    Nothing is changed without glibc, or if the variables ``MALLOC_...`` or ``GLIBC_TUNABLES`` are
    set.
    """
    if "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    kept = mallopt(_MMAP_THRESHOLD, _KEPT) or mallopt(_MMAP_THRESHOLD, _MOST)
    return bool(kept and mallopt(_TRIM_THRESHOLD, _KEPT) and mallopt(_TOP_PAD, _GROWTH))
