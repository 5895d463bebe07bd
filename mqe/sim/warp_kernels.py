"""Kernels for the GPU simulator's step, compiled and loaded in parallel."""

import logging
import os
import pickle
import pkgutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import warp as wp

from mqe.cores import num_cores

_LOG = logging.getLogger(__name__)
_PATIENCE_S = 3.0  # kernels from the cache load faster, or nearly so
_PROGRESS_S = 10.0  # time between two lines
_BLOCK_DIM = 256  # threads of a block unless a launch names them
_MOST_COMPILERS = 16  # at a time; each takes 0.2 to 1.2 GiB
_COMPILER = "warp._src.build.build_cuda"  # of one module's source, for a GPU
_COMPILE = """
import pickle, sys
import warp
from warp._src.build import build_cuda
warp.config.log_level = warp.LOG_ERROR
warp.init()
arguments, options = pickle.load(sys.stdin.buffer)
build_cuda(*arguments, **options)
"""


class KernelModule(NamedTuple):
    """A module of kernels. Each block size is compiled separately."""

    module: wp.Module
    block_dim: int


@contextmanager
def recorded_launches() -> Iterator[dict[KernelModule, None]]:
    """Context manager: record launched modules in order instead of launching them.

    Both branches of conditions run once. No other thread may launch kernels meanwhile.
    """
    launched: dict[KernelModule, None] = {}

    def record(
        kernel: wp.Kernel,
        dim: int | Sequence[int],
        *_: Any,
        block_dim: int | None = None,
        **__: Any,
    ) -> None:
        sizes = (dim,) if isinstance(dim, int) else dim
        # Warp loads nothing for a launch of no threads, and compiles generic kernels by arguments.
        if all(sizes) and not kernel.is_generic:
            launched[KernelModule(kernel.module, block_dim or _BLOCK_DIM)] = None

    with (
        mock.patch.object(wp, "launch", record),
        mock.patch.object(wp, "launch_tiled", record),
        mock.patch.object(wp, "capture_while", _run_body),
        mock.patch.object(wp, "capture_if", _run_branches),
    ):
        yield launched


def load_in_parallel(modules: Collection[KernelModule], device: wp.Device) -> None:
    """Load modules on ``device`` on all cores. Modules missing in Warp's cache are compiled.

    A slow load logs its progress.
    """
    start_s = time.perf_counter()
    next_s = start_s + _PATIENCE_S
    num_threads = min(num_cores(), _MOST_COMPILERS)
    with compiling_in_processes(), ThreadPoolExecutor(num_threads) as pool:
        loads = [
            pool.submit(wp.force_load, device, [kernel_module.module], kernel_module.block_dim, 0)
            for kernel_module in modules
        ]
        for num_ready, load in enumerate(as_completed(loads), start=1):
            load.result()
            now_s = time.perf_counter()
            if now_s >= next_s:
                next_s = now_s + _PROGRESS_S
                _LOG.info(
                    "compiling the physics kernels for %s, once on a machine: %d of %d modules "
                    "after %.0f s",
                    device,
                    num_ready,
                    len(modules),
                    now_s - start_s,
                )
    seconds = time.perf_counter() - start_s
    if seconds > _PATIENCE_S:
        _LOG.info("physics kernels are ready after %.0f s", seconds)


@contextmanager
def compiling_in_processes() -> Iterator[None]:
    """Context manager: run each call to NVIDIA's compiler in a process.

    In one process the compiler takes one module at a time, with any number of threads. If a call's
    process fails, or another Warp compiles elsewhere, the call is made in this process.
    """
    try:
        compile_here = pkgutil.resolve_name(_COMPILER)
    except (ImportError, AttributeError):
        yield
        return
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}

    def compile_apart(*arguments: Any, **options: Any) -> None:
        outcome = subprocess.run(
            [sys.executable, "-c", _COMPILE],
            input=pickle.dumps((arguments, options)),
            capture_output=True,
            env=environment,
        )
        if outcome.returncode:
            compile_here(*arguments, **options)

    with mock.patch(_COMPILER, compile_apart):
        yield


def _run_body(
    condition: Any, while_body: Callable[..., None], stream: Any = None, **arguments: Any
) -> None:
    while_body(**arguments)


def _run_branches(
    condition: Any,
    on_true: Callable[..., None] | None = None,
    on_false: Callable[..., None] | None = None,
    stream: Any = None,
    **arguments: Any,
) -> None:
    for branch in (on_true, on_false):
        if branch is not None:
            branch(**arguments)
