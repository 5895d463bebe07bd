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

import pytest

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
    """Prepare a process that runs tests; the one that hands them out to others needs no torch."""
    hands_out = bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")
    if hands_out:
        return

    gc.disable()  # while tests are collected, which only adds objects
    import torch

    from harl_mapush import test
    from mqe.extensions import load_extensions

    load_extensions()
    torch.set_num_threads(1)
    test.NUM_BASELINE_EPISODES = 0  # scripted policies play only in tests that ask for them


def pytest_collection_finish() -> None:
    """Collect garbage again, but look at none of what the tests start with, and not so often."""
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Leave torch's threads as they were: a run keeps those that it was asked for."""
    import torch

    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def gait(tmp_path_factory) -> Path:
    """A run of the velocity task that has learned nothing yet."""
    from harl_mapush import train
    from tests.support.tiny_runs import TINY

    out = tmp_path_factory.mktemp("gait") / "run"
    walk = [
        "--task",
        "go1_velocity",
        "--num_agents",
        "1",
        "--num_env_steps",
        "1",
        "--out",
        str(out),
    ]
    assert train.main([*walk, *TINY]) == 0
    return next((out / "checkpoints").iterdir())
