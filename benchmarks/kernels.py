"""Which kernels the device spends a rollout and an update in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from measuring import seconds, wait
from torch.profiler import ProfilerActivity, profile

from harl_mapush.runner import Runner

_NAMED = 30  # kernels a list
_NAME = 100  # characters of a name: templates go on for pages


def time_kernels(runner: Runner) -> dict[str, dict[str, Any]]:
    """Profile one rollout and one update of a runner whose graphs exist; the wall clock is that of
    another one.
    """
    return {name: _profiled(work, runner.env.device) for name, work in _works(runner).items()}


def _works(runner: Runner) -> dict[str, Callable[[], object]]:
    return {"collect": runner.collect, "update": runner.update}


def _profiled(work: Callable[[], object], device: torch.device) -> dict[str, Any]:
    on_cpu = device.type == "cpu"
    took = seconds(device, work)
    with profile(
        activities=[ProfilerActivity.CPU if on_cpu else ProfilerActivity.CUDA], acc_events=True
    ) as profiler:
        work()
        wait(device)
    column = "self_cpu_time_total" if on_cpu else "self_device_time_total"
    events = sorted(profiler.key_averages(), key=lambda event: -getattr(event, column))
    return {
        "wall_ms": 1e3 * took,
        "kernels_ms": sum(getattr(event, column) for event in events) / 1e3,
        "launches": sum(event.count for event in events),
        "kernels": [
            [event.key[:_NAME], getattr(event, column) / 1e3, event.count]
            for event in events[:_NAMED]
        ],
    }
