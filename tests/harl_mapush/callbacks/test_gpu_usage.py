"""Curves of a GPU's memory and utilisation, with a stand-in for the driver's library."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch

from harl_mapush.callbacks.gpu_usage import GpuUsage
from harl_mapush.progress import IterationReport

GPU = torch.device("cuda", 0)
REPORT = IterationReport(1, 10, 100, 1000, 3.0, 1.0, {"reward/push": 0.01})


def driver(init: int = 0, rates: int = 0) -> SimpleNamespace:
    """Return a library with GPU 1234 only and these return codes."""

    def memory_info(handle, memory):
        memory._obj.total = 80 * 2**30
        memory._obj.free = 79 * 2**30
        return 0

    def utilization_rates(handle, utilization):
        utilization._obj.gpu = 37
        return rates

    return SimpleNamespace(
        nvmlInit_v2=lambda: init,
        nvmlDeviceGetHandleByUUID=lambda name, handle: 0 if name == b"GPU-1234" else 6,
        nvmlDeviceGetMemoryInfo=memory_info,
        nvmlDeviceGetUtilizationRates=utilization_rates,
    )


def usage(monkeypatch, library: SimpleNamespace | None, uuid: str = "1234") -> GpuUsage:
    def load(name):
        if library is None:
            raise OSError(name)
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuid)
    )
    return GpuUsage(GPU)


def test_an_iteration_gets_memory_and_utilisation(monkeypatch):
    report = usage(monkeypatch, driver()).on_iteration(REPORT)
    assert report is not None
    assert report.metrics == {
        "reward/push": 0.01,
        "perf/gpu_memory_mib": 1024.0,
        "perf/gpu_utilisation": 0.37,
    }


@pytest.mark.parametrize(
    ("library", "uuid"),
    [(None, "1234"), (driver(init=9), "1234"), (driver(), "other"), (driver(rates=3), "1234")],
)
def test_a_run_without_the_drivers_answer_has_no_such_curves(monkeypatch, library, uuid):
    assert usage(monkeypatch, library, uuid).on_iteration(REPORT) is None
