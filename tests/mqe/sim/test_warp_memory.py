"""mqe.sim.warp_memory: the memory that worlds of a model take."""

from __future__ import annotations

import pytest
import torch

from mqe.world.scene import build_scene
from tests.support.lazy_modules import needs_warp


@needs_warp
def test_a_simulator_takes_what_was_foreseen():
    import warp as wp
    from mqe.sim.warp_memory import memory_use
    from warp._src import context

    from mqe.sim.mujoco_warp import MujocoWarpSimulator

    model = build_scene(1, None).model
    num_envs = 100
    foreseen = memory_use(model)
    with wp.ScopedMemoryTracker("test", print=False) as tracker:
        tracker.clear()
        sim = MujocoWarpSimulator(model, num_envs, torch.device("cpu"))
        state = context.runtime.core.wp_alloc_tracker_get_current_bytes()
        sim.step(1)
        peak = context.runtime.core.wp_alloc_tracker_get_peak_bytes()
        sim.close()
    assert state == pytest.approx(foreseen.fixed + num_envs * foreseen.state, rel=0.02)
    assert peak == pytest.approx(
        foreseen.fixed + num_envs * (foreseen.state + foreseen.step), rel=0.02
    )
