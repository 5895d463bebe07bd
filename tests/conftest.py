"""One torch thread a test process: two of them run side by side on two cores, and small tensors
gain nothing.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
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
    import torch
    from hypothesis.internal.conjecture import providers

    from tests.support.remembered_calls import leave_out_the_compiler, remember_versions

    remember_versions()  # before other modules import the function
    leave_out_the_compiler()
    from mqe.extensions import load_extensions
    from tests.support.planned_worlds import remember_planned_worlds
    from tests.support.pretrained_cache import remember_shipped_policies
    from tests.support.scene_cache import remember_scenes

    remember_scenes()  # before other modules import build_scene
    remember_shipped_policies()
    remember_planned_worlds()
    load_extensions()
    torch.set_num_threads(1)
    # Hypothesis would look for constants in every imported module, for up to ten seconds a process.
    providers._get_local_constants = providers.Constants
    # A flush to the disk takes milliseconds, and only a power failure shows it.
    os.fsync = os.fstat


def pytest_collection_finish() -> None:
    """Prepare for tests after all imports: one contact kernel, and rarer garbage collection without
    the objects from collection.
    """
    from tests.support.remembered_calls import remember_fitting_arrays, remember_sums_of_integers
    from tests.support.shared_kernel import share_contact_kernel

    share_contact_kernel()
    if "warp" in sys.modules:
        remember_sums_of_integers()
        remember_fitting_arrays()
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


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
