"""How many processor cores this process may use."""

from __future__ import annotations

import os


def num_cores() -> int:
    """Return the cores that this process may use, fewer than the machine's where it was given a part of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
