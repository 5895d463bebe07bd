"""One torch thread a test process: two of them run side by side on two cores, and small tensors
gain nothing.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import mujoco

    from mqe.world.scene import Scene

# Python's own cache: without it every process of a test compiles three packages, and every worker
# rewrites all asserts.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    # Tests that run in the background inherit that these are ignored.
    signal.signal(_number, _usual)


def pytest_configure(config: pytest.Config) -> None:
    """Prepare a process for tests. The distributing process needs no torch."""
    hands_out = bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")
    if hands_out:
        return

    gc.disable()  # while tests are collected, which only adds objects
    from hypothesis.internal.conjecture import providers

    from tests.support.remembered_calls import (
        leave_out_the_compiler,
        remember_start_poses,
        remember_versions,
        remember_yaml,
    )

    remember_yaml()
    remember_versions()  # before other modules import the function
    leave_out_the_compiler()  # before other modules import torch
    import torch

    from tests.support.scene_cache import remember_scenes

    remember_scenes()  # before other modules import build_scene
    from mqe.extensions import load_extensions
    from tests.support.lazy_modules import after_import
    from tests.support.pretrained_cache import remember_shipped_policies

    remember_shipped_policies()
    after_import("mujoco_warp", prepare_warp)
    after_import("mapush.extensions.navigate.maps.solved", draw_few_maps)
    after_import("mapush.extensions.gait.starts", remember_start_poses)
    load_extensions()
    torch.set_num_threads(1)
    # Hypothesis would look for constants in every imported module, for up to ten seconds a process.
    providers._get_local_constants = providers.Constants
    # A flush to the disk takes milliseconds, and only a power failure shows it.
    os.fsync = os.fstat


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Let a second worker import the tests from the last on. In a fresh clone two workers then
    rewrite the asserts of half of the files each.
    """
    config = collector.config
    if not isinstance(collector, pytest.Session) or not hasattr(config, "workerinput"):
        return
    is_whole_suite = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    if not is_whole_suite or config.workerinput["workerid"] != "gw1":
        return
    for path in sorted(config.rootpath.glob("tests/**/test_*.py"), reverse=True):
        name = ".".join(path.relative_to(config.rootpath).with_suffix("").parts)
        # Collection imports the module again, and reports what is missing.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def pytest_collection_finish() -> None:
    """Collect garbage more rarely, and not among the objects from collection."""
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


def prepare_warp() -> None:
    """Compile one contact kernel for all scenes, and remember Warp's sums and arrays."""
    from tests.support.remembered_calls import remember_fitting_arrays, remember_sums_of_integers
    from tests.support.shared_kernel import share_contact_kernel

    share_contact_kernel()
    remember_sums_of_integers()
    remember_fitting_arrays()
    gc.freeze()  # the library's objects stay


def draw_few_maps() -> None:
    """Draw 8 maps of a family instead of 100, to save three seconds of shortest paths."""
    from mapush.extensions.navigate.maps import solved

    draw = solved.draw_maps
    solved.draw_maps = lambda name, seed, num_maps, room: draw(name, seed, min(num_maps, 8), room)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Restore torch's thread count: a run keeps its requested count."""
    import torch

    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def short_measurements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure blocks of 4 worlds instead of 32, and only the team.

    The mark ``whole_blocks`` keeps 32: equal bits need whole registers, and worker processes have
    their own constants. The mark ``compared`` keeps a suite's other policies.
    """
    from harl_mapush.evaluation import episodes, suite_player
    from mqe.controllers.blocks import ActiveWorlds

    if request.node.get_closest_marker("whole_blocks") is None:
        monkeypatch.setattr(episodes, "SIZE", 4)
        monkeypatch.setattr(ActiveWorlds.__init__, "__defaults__", (4,))
    if request.node.get_closest_marker("compared") is None:
        monkeypatch.setattr(suite_player.Player, "_policies", lambda player, request: [])


@pytest.fixture(autouse=True)
def plain_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw without shadows, which take six sevenths of a small picture's time on a CPU.

    The mark ``shadows`` keeps them.
    """
    from mqe.viewer import offscreen

    if request.node.get_closest_marker("shadows") is not None:
        return
    model_with_shadows = offscreen.shown_model

    def shown_model(scene: Scene) -> mujoco.MjModel:
        model = model_with_shadows(scene)
        model.vis.quality.shadowsize = 0
        return model

    monkeypatch.setattr(offscreen, "shown_model", shown_model)


@pytest.fixture
def few_conjugate_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let HATRPO's conjugate gradient take two steps instead of ten, in tests without a number of
    its own.
    """
    if find_spec("mapush.extensions") is not None:
        monkeypatch.setattr("mapush.extensions.harl.hatrpo._CG_STEPS", 2)


@pytest.fixture(scope="session")
def gait(tmp_path_factory) -> Path:
    """An untrained gait. Its robots hardly leave the trot."""
    import torch

    from mqe.manifest import write_manifest
    from tests.support.gaits import small_gait

    folder = tmp_path_factory.mktemp("gait") / "gait"
    folder.mkdir()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        small_gait(folder, gain=0.01)
    write_manifest(folder, "cpu")
    return folder


@pytest.fixture
def walking(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a task with one robot and no object. Return its name."""
    from mqe.registry import TASKS
    from tests.support.strolling import STROLL

    monkeypatch.setitem(TASKS, "walking", STROLL)
    return "walking"
