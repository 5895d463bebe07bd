"""The GPU simulator's memory on a device, computed without a GPU or running a kernel."""

from __future__ import annotations

from typing import NamedTuple

import mujoco
import mujoco_warp as mjw
import warp as wp
from warp._src import context

from mqe.sim.mujoco_warp import Capacity, capacity, known_to_warp
from mqe.sim.warp_kernels import recorded_launches

_WORLDS = (64, 128)  # two sizes give a straight line


class MemoryUse(NamedTuple):
    """A simulator's memory [bytes], linear in the number of worlds."""

    fixed: float
    state: float  # a world, from start to end
    step: float  # a world, more while a step runs, as long as its graph exists


def memory_use(model: mujoco.MjModel) -> MemoryUse:
    """Return the memory allocated by ``MujocoWarpSimulator`` for ``model``.

    A few worlds are made on Warp's CPU device and stepped without launching any kernel. Only a
    step's allocations remain, counted by Warp's tracker.
    """
    warp_model = known_to_warp(model)
    size = capacity(model)
    (few, few_peak), (many, many_peak) = (
        _bytes(warp_model, size, num_envs) for num_envs in _WORLDS
    )
    worlds = _WORLDS[1] - _WORLDS[0]
    state = (many - few) / worlds
    peak = (many_peak - few_peak) / worlds
    fixed = max(few_peak - peak * _WORLDS[0], 0.0)
    return MemoryUse(fixed, state, peak - state)


def _bytes(model: mujoco.MjModel, size: Capacity, num_envs: int) -> tuple[int, int]:
    """Return the memory [bytes] for model and worlds, and the peak during a step."""
    wp.init()
    tracker = context.runtime.core
    with wp.ScopedDevice("cpu"), wp.ScopedMemoryTracker("plan", print=False) as tracking:
        tracking.clear()
        warp_model = mjw.put_model(model)
        data = mjw.make_data(model, num_envs, nconmax=size.contacts, njmax=size.rows)
        state = tracker.wp_alloc_tracker_get_current_bytes()
        with recorded_launches():
            mjw.step(warp_model, data)
        return state, tracker.wp_alloc_tracker_get_peak_bytes()
