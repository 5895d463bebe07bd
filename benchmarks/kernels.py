"""Device kernels in a rollout and an update, by time."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import seconds, wait
from torch.profiler import ProfilerActivity, profile

from harl_mapush.runner import Runner

_NAMED = 60  # kernels a list
_NAME = 100  # characters of a name: templates go on for pages
_OCCUPANCY = "est. achieved occupancy %"


def time_kernels(runner: Runner) -> dict[str, dict[str, Any]]:
    """Profile one rollout and one update on a runner with existing graphs. The wall clock comes
    from an unprofiled pass.
    """
    works = {"collect": runner.collect, "update": runner.update}
    return {name: _profiled(work, runner.env.device) for name, work in works.items()}


def _profiled(work: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Return the wall clock and, for each kernel name, milliseconds, launches, threads per launch
    and the maximum fraction of the device's warps in use (on a GPU).
    """
    on_cpu = device.type == "cpu"
    took = seconds(device, work)
    with profile(
        activities=[ProfilerActivity.CPU if on_cpu else ProfilerActivity.CUDA], acc_events=True
    ) as profiler:
        work()
        wait(device)
    kernels = _operations(profiler) if on_cpu else _kernels(profiler)
    kernels.sort(key=lambda kernel: -kernel[1])
    return {
        "wall_ms": 1e3 * took,
        "kernels_ms": sum(kernel[1] for kernel in kernels),
        "launches": sum(kernel[2] for kernel in kernels),
        "kernels": kernels[:_NAMED],
    }


def _operations(profiler: profile) -> list[list[Any]]:
    return [
        [event.key[:_NAME], event.self_cpu_time_total / 1e3, event.count]
        for event in profiler.key_averages()
    ]


def _kernels(profiler: profile) -> list[list[Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    by_name = defaultdict(list)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy"):
            by_name[event["name"][:_NAME]].append(event)
    return [_summary(name, records) for name, records in by_name.items()]


def _summary(name: str, events: list[dict[str, Any]]) -> list[Any]:
    milliseconds = sum(event["dur"] for event in events) / 1e3
    first = events[0]["args"]
    threads = 1
    for extent in (*first.get("grid", []), *first.get("block", [])):
        threads *= extent
    return [name, milliseconds, len(events), threads, first.get(_OCCUPANCY)]
