"""The number of processor cores available to this process."""

import math
import os
from pathlib import Path

from mqe.control_groups import groups


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
    """Return the control groups' CPU quota [cores], infinite without a limit."""
    return min(map(_quota, groups("cpu")), default=math.inf)


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
    except (OSError, ValueError, ZeroDivisionError):  # the value "max", or missing files
        return math.inf
