"""How many processor cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Return the number of cores available to this process.

    Limits are a core list (``taskset``) or processor time (a container's CPU limit, rounded up to
    whole cores).
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return math.ceil(min(cores, cpu_quota()))


def cpu_quota() -> float:
    """Return the CPU quota [cores] from Linux's control groups (v1 or v2), infinite without a
    limit.

    A group's limit holds for the groups inside it. A container sees its own group as the root,
    under either path.
    """
    try:
        lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):  # not Linux, or the name of a group is no text
        return math.inf
    quotas = [math.inf]
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = GROUPS / controllers
        own = root / path.lstrip("/")
        quotas += [_quota(group) for group in (own, *own.parents) if group.is_relative_to(root)]
    return min(quotas)


def _quota(group: Path) -> float:
    """Return one group's limit, infinite without one."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = (
                (group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):  # "max", and files that are not there
        return math.inf
