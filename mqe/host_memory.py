"""Memory available to this process, and errors with a number that fits."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from mqe.config import ConfigError, reason_of
from mqe.control_groups import groups

MEMINFO = Path("/proc/meminfo")
_KIB = 1024
_GIB = 2**30
_ROOM = 0.9  # share of the free memory in a suggestion
_OTHERS = "end other programs that use it"
# In messages of torch and Warp about exhausted memory
_EXHAUSTED = ("out of memory", "can't allocate memory", "Failed to allocate")
# Names of the limit, of the usage and of the cached files in it, in groups of v2 and v1
_NAMES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)


def check_room(needed: float, device: torch.device, setting: str, value: int) -> None:
    """Raise ConfigError, with a fitting number, if ``needed`` bytes do not fit on a device.

    They are proportional to the ``value`` of a ``setting``. Without knowledge of the free memory
    nothing is raised.
    """
    free = host_memory() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    if free is None or needed <= free:
        return
    fitting = int(value * _ROOM * free / needed)
    fitting -= fitting % (1 << max(0, fitting.bit_length() - 2))  # two binary digits are left
    hint = f"lower {setting} to {fitting}" if fitting else _OTHERS
    raise ConfigError(
        f"{setting}={value} takes {needed / _GIB:.1f} GiB, but {device} has {free / _GIB:.1f} GiB "
        f"free for it; {hint}"
    )


@contextmanager
def exhaustion_named(num_envs: int) -> Iterator[None]:
    """Context manager: raise ConfigError, with half of ``num_envs``, if memory is exhausted."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        reason = reason_of(error)
        if not isinstance(error, MemoryError) and not any(sign in reason for sign in _EXHAUSTED):
            raise
        hint = f"lower env.num_envs to {num_envs // 2}" if num_envs > 1 else _OTHERS
        raise ConfigError(
            f"env.num_envs={num_envs}: the memory is exhausted ({reason:.200}); {hint}"
        ) from None


def host_memory() -> int | None:
    """Return the host's available memory [bytes]. None if the system does not tell.

    Control groups' limits count. Cached files count as available: the system frees them on demand.
    """
    available = _of_the_machine()
    if available is None:
        return None
    for group in groups("memory"):
        for limit_name, usage_name, cache_names in _NAMES:
            limit = _number(group / limit_name)
            usage = _number(group / usage_name)
            if limit is None or usage is None:
                continue
            counts = _table(group / "memory.stat")
            cached = sum(counts.get(name, 0) for name in cache_names)
            available = min(available, max(limit - max(usage - cached, 0), 0))
    return available


def _of_the_machine() -> int | None:
    counts = _table(MEMINFO)
    if "MemAvailable" in counts:
        return counts["MemAvailable"] * _KIB
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system has these numbers
        return None


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
