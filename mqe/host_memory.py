"""The host's memory available to this process."""

from __future__ import annotations

import os
from pathlib import Path

from mqe.control_groups import groups

MEMINFO = Path("/proc/meminfo")
_KIB = 1024
# Names of the limit, of the usage and of the cached files in it, in groups of v2 and v1
_NAMES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)


def host_memory() -> tuple[int | None, int | None]:
    """Return the host's available memory and its total memory [bytes]. None if the system does not
    tell.

    Control groups' limits count. Cached files count as available: the system frees them on demand.
    """
    available, total = _of_the_machine()
    if available is None or total is None:
        return None, None
    for group in groups("memory"):
        for limit_name, usage_name, cache_names in _NAMES:
            limit = _number(group / limit_name)
            usage = _number(group / usage_name)
            if limit is None or usage is None:
                continue
            counts = _table(group / "memory.stat")
            cached = sum(counts.get(name, 0) for name in cache_names)
            available = min(available, max(limit - max(usage - cached, 0), 0))
            total = min(total, limit)
    return available, total


def _of_the_machine() -> tuple[int | None, int | None]:
    counts = _table(MEMINFO)
    if "MemAvailable" in counts and "MemTotal" in counts:
        return counts["MemAvailable"] * _KIB, counts["MemTotal"] * _KIB
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
    except (ValueError, OSError, AttributeError):  # not every system has these numbers
        return None, None


def _number(path: Path) -> int | None:
    """Return the integer in a file. None for ``max`` or -1, and without the file."""
    try:
        number = int(path.read_text())
    except (OSError, ValueError):
        return None
    return None if number < 0 else number


def _table(path: Path) -> dict[str, int]:
    """Return a file's integers by name: lines such as ``MemTotal: 24 kB`` or ``cache 24``."""
    counts = {}
    try:
        for line in path.read_text().splitlines():
            name, *values = line.replace(":", " ").split()
            counts[name] = int(values[0])
    except (OSError, ValueError, IndexError):
        return {}
    return counts
