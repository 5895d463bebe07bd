"""Curves of a GPU's memory and utilisation, read from the driver's management library (NVML)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

import torch

from harl_mapush.callback import Callback
from harl_mapush.progress import IterationReport

_LIBRARY = "libnvidia-ml.so.1"


class Usage(NamedTuple):
    """The use of a GPU by all processes."""

    memory: int  # bytes
    utilisation: float  # share of the driver's last period with a running kernel, in [0, 1]


class GpuUsage(Callback):
    """Adds ``perf/gpu_memory_mib`` and ``perf/gpu_utilisation`` to the metrics of each iteration.

    Both count all processes on the GPU, collectors included. Reading them does not wait for the
    GPU. Nothing is added without NVML.
    """

    def __init__(self, device: torch.device) -> None:
        """Read the usage of the CUDA device ``device``."""
        self._read = usage_reader(device)

    def on_iteration(self, report: IterationReport) -> IterationReport | None:
        """Return the report with the usage, or None without one."""
        usage = None if self._read is None else self._read()
        if usage is None:
            return None
        added = {
            "perf/gpu_memory_mib": usage.memory / 2**20,
            "perf/gpu_utilisation": usage.utilisation,
        }
        return report._replace(metrics=report.metrics | added)


def usage_reader(device: torch.device) -> Callable[[], Usage | None] | None:
    """Return a function to read a CUDA device's usage, or None without NVML.

    The function returns None if the driver refuses.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    handle = ctypes.c_void_p()
    # By its UUID, since NVML also counts GPUs that are hidden from CUDA.
    name = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)):
        return None
    memory = _Memory()
    rates = _Rates()

    def read() -> Usage | None:
        is_refused = library.nvmlDeviceGetMemoryInfo(
            handle, ctypes.byref(memory)
        ) or library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates))
        if is_refused:
            return None
        return Usage(memory.total - memory.free, rates.gpu / 100)

    return read


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Rates(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in ("gpu", "memory")]
