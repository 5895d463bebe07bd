"""A GPU's memory in use, read from the driver's management library (NVML)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

_LIBRARY = "libnvidia-ml.so.1"


def memory_reader(device: torch.device) -> Callable[[], int | None] | None:
    """Return a function to read the bytes in use by all processes on a GPU, or None without NVML.

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

    def read() -> int | None:
        if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None
        return memory.total - memory.free

    return read


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]
