"""mqe.sim.warp_kernels: the modules for a step, and progress lines during compilation."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
import torch

from mqe.world.objects import OBJECTS
from mqe.world.scene import build_scene
from tests.support.lazy_modules import LazyModule, needs_warp

pytestmark = needs_warp
wp: Any = LazyModule("warp")
warp_kernels: Any = LazyModule("mqe.sim.warp_kernels")


def make_sim() -> Any:
    from mqe.sim.mujoco_warp import MujocoWarpSimulator

    scene = build_scene(2, OBJECTS["cuboid"])
    return MujocoWarpSimulator(scene.model, 2, torch.device("cpu"))


def test_a_step_launches_no_module_that_was_not_loaded(monkeypatch) -> None:
    loaded: list[Any] = []

    def load(modules: Any, device: Any) -> None:
        loaded.extend(modules)
        warp_kernels.load_in_parallel(modules, device)

    monkeypatch.setattr("mqe.sim.mujoco_warp.load_in_parallel", load)
    launched: set[Any] = set()
    real = {name: getattr(wp, name) for name in ("launch", "launch_tiled")}

    def passing(name: str) -> Any:
        def launch(kernel: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
            sizes = (dim,) if isinstance(dim, int) else dim
            if all(sizes):
                launched.add(
                    warp_kernels.KernelModule(kernel.module, kwargs.get("block_dim") or 256)
                )
            return (
                real[name](kernel, dim, *args, **kwargs)
                if name == "launch"
                else real[name](kernel, *args, dim=dim, **kwargs)
            )

        return launch

    sim = make_sim()
    for name in real:
        monkeypatch.setattr(f"warp.{name}", passing(name))
    sim.step(4)
    assert launched == set(loaded)
    assert len(loaded) == len(set(loaded)) > 20
    sim.step(4)
    assert len(loaded) == len(set(loaded))


def test_the_first_reset_loads_the_kernels_of_a_step(monkeypatch) -> None:
    loads: list[int] = []
    monkeypatch.setattr(
        "mqe.sim.mujoco_warp.load_in_parallel", lambda modules, _: loads.append(len(modules))
    )
    sim = make_sim()
    data = sim.data
    for _ in range(2):
        sim.write(torch.tensor([True, False]), data.qpos + 0.1, data.qvel, data.mocap_pos)
    (num_modules,) = loads
    assert num_modules > 20
    sim.step(4)
    assert loads == [num_modules]


def test_loading_leaves_the_worlds_as_they_were() -> None:
    one = make_sim()
    other = make_sim()
    other._is_loaded = True  # nothing is launched for the record
    one._load_kernels()
    for name, values in one.state_dict().items():
        assert torch.equal(values, other.state_dict()[name]), name
    for sim in (one, other):
        sim.step(4)
    assert torch.equal(one.data.qpos, other.data.qpos)
    assert torch.equal(one.data.qvel, other.data.qvel)


def test_slow_compilation_says_how_far_it_is(monkeypatch, caplog) -> None:
    now_s = [0.0]

    def compile_slowly(*_: Any) -> None:
        now_s[0] += 2.0

    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr("warp.force_load", compile_slowly)
    monkeypatch.setattr("mqe.sim.warp_kernels.as_completed", lambda loads: serially(loads))
    monkeypatch.setattr("mqe.sim.warp_kernels.ThreadPoolExecutor", Serial)
    module = warp_kernels.KernelModule(wp.get_module("any"), 256)
    with caplog.at_level(logging.INFO, "mqe"):
        warp_kernels.load_in_parallel([module] * 9, wp.get_device("cpu"))
        warp_kernels.load_in_parallel([module], wp.get_device("cpu"))
    start = "compiling the physics kernels for cpu, once on a machine: "
    assert [record.message for record in caplog.records] == [
        start + "2 of 9 modules after 4 s",
        start + "7 of 9 modules after 14 s",
        "physics kernels are ready after 18 s",
    ]


@pytest.mark.parametrize("has_process", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_module_is_compiled_in_a_process_of_its_own_or_here(monkeypatch, tmp_path, has_process):
    @wp.kernel(module="unique")
    def double(values: wp.array(dtype=float)) -> None:  # type: ignore[valid-type]
        values[wp.tid()] *= 2.0

    compiled = []
    monkeypatch.setattr("warp._src.build.build_cuda", lambda path, *_, **__: compiled.append(path))
    if not has_process:
        monkeypatch.setattr("mqe.sim.warp_kernels._COMPILE", "raise SystemExit(1)")
    with warp_kernels.compiling_in_processes():
        wp.compile_aot_module(double.module, arch=90, module_dir=tmp_path, use_ptx=False)
    assert len(list(tmp_path.glob("*.cubin"))) == has_process
    assert len(compiled) == 1 - has_process


class Serial:
    """A pool with lazy work: each job runs in the call for its result."""

    def __init__(self, num_threads: int) -> None: ...

    def __enter__(self) -> Serial:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, work: Any, *args: Any) -> Any:
        return lambda: work(*args)


class Done:
    def result(self) -> None: ...


def serially(loads: Any) -> Any:
    for load in loads:
        load()
        yield Done()
