"""Common parts for benchmarks: a configuration, a synchronising stopwatch, device memory, JSON
lines.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_usage import memory_reader

from harl_mapush import config
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.callback import Callback
from harl_mapush.config import RunCfg
from harl_mapush.process import library_lines, seed_everything
from harl_mapush.progress import IterationReport
from harl_mapush.runner import Runner
from mqe.config import assignment, merge
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env, resolve_sim

GIB = 2**30


class OnIteration(Callback):
    """Calls a function after every iteration."""

    def __init__(self, function: Callable[[IterationReport], object]) -> None:
        self._function = function

    def on_iteration(self, report: IterationReport) -> None:
        """Call the function."""
        self._function(report)


def add_settings(parser: argparse.ArgumentParser, preset: str) -> None:
    """Add every benchmark's flags: a preset, and ``--set`` on top."""
    parser.add_argument("--preset", default=preset)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")


def settings(arguments: argparse.Namespace, **over: dict[str, Any]) -> RunCfg:
    """Return the preset's configuration under ``over`` and then ``--set``, with a definite device
    and simulator.
    """
    values: dict[str, Any] = over
    for text in arguments.set:
        values = merge(values, assignment(text))
    cfg, _ = config.resolve(config.load_preset(arguments.preset), values)
    name, device = resolve_sim(cfg.sim)
    sim = {"sim": {"name": name, "device": str(device)}}
    return config.resolve(config.load_preset(arguments.preset), merge(values, sim))[0]


def make_run(cfg: RunCfg) -> tuple[MultiAgentEnv, Runner]:
    """Build environment and runner as the trainer does."""
    seed_everything(cfg.runner.seed)
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    spec = cfg.algorithm.team_spec(env)
    algorithm = make_algorithm(cfg.algorithm, cfg.network, spec, env.device, cfg.runner.seed)
    return env, Runner(env, algorithm, cfg.runner)


def say(line: str) -> None:
    """Write a line for a person, on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def emit(**facts: Any) -> None:
    """Write one JSON line on stdout, numbers to five digits."""
    sys.stdout.write(json.dumps({name: _short(value) for name, value in facts.items()}) + "\n")
    sys.stdout.flush()


def lines_of_simulators() -> Any:
    """Show simulator messages on stderr, as a context."""
    return library_lines(say)


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type != "cpu":
        torch.cuda.synchronize(device)


def seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Time ``work`` on the wall clock, the device's work included."""
    wait(device)
    start = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - start


def used(device: torch.device) -> int:
    """Return bytes in use: total minus free on a GPU, this process's on a CPU."""
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    wait(device)
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def name_of(device: torch.device) -> str:
    """Name the device."""
    if device.type == "cpu":
        return f"{torch.get_num_threads()} threads"
    return torch.cuda.get_device_name(device)


def alone(script: str, *arguments: str) -> int:
    """Run a script from this folder in its own process, since memory pools outlive their users."""
    return subprocess.run([sys.executable, script, *arguments], check=False).returncode


class Watch:
    """A device's peak memory in use (total minus free), from the driver's management library.

    The library also counts the driver's own memory. The initial difference is subtracted.
    """

    def __init__(self, device: torch.device, interval_s: float = 0.02) -> None:
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._read = None if device.type == "cpu" else memory_reader(device)
        self.peak = used(device)
        self._offset = 0
        self._offset = self._memory() - self.peak
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        if self._read is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._read is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._read is not None
        while not self._stop.wait(self._interval_s):
            self.peak = max(self.peak, self._memory())

    def _memory(self) -> int:
        """Bytes in use, as the driver counts them, less the difference at the start."""
        memory = None if self._read is None else self._read()
        return self.peak if memory is None else memory - self._offset


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
