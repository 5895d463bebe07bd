"""Training with and without collectors, in turns, as JSON lines.

``python benchmarks/collectors.py [--preset laptop_hasac] [--collectors 2] [--seconds 60] [--rounds
3]`` trains both ways for ``--seconds`` after the warm-up. It prints env steps and updates per
second, each side's wait, and the policy's lag. ``--learner_device cuda`` puts the learner on a GPU
in the run with collectors. ``--set`` changes settings for both.

``python benchmarks/collectors.py count --transitions 1000000`` sends toy transitions through
processes, queue, ingest thread and replay, and prints the numbers sent, received and stored.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, cast

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from harl_mapush.collectors.launcher import LocalLauncher  # noqa: E402
from measuring import OnIteration, add_settings, emit, make_run, say, settings  # noqa: E402

from harl_mapush.algorithms.entries import make_algorithm  # noqa: E402
from harl_mapush.callback import Callback  # noqa: E402
from harl_mapush.collectors.async_runner import AsyncRunner  # noqa: E402
from harl_mapush.collectors.collector_settings import settled  # noqa: E402
from harl_mapush.collectors.learner import ReplayLearner  # noqa: E402
from harl_mapush.collectors.remote_env import RemoteEnvSpec  # noqa: E402
from harl_mapush.config import RunCfg  # noqa: E402
from harl_mapush.runner import Runner  # noqa: E402
from mqe.cores import num_cores
from tests.support import toy_collectors  # noqa: E402


class _EnoughError(Exception):
    """The time is over."""


class Timer(Callback):
    """Counts a run's env steps and updates from the first learning iteration on, and ends the run
    at its time limit.
    """

    def __init__(self, runner: Runner, seconds: float) -> None:
        self._runner = runner
        self._seconds = seconds
        self._begin: tuple[float, int, int] | None = None
        self.figures: dict[str, float] = {}

    def on_iteration(self, report: Any) -> None:
        team = cast(ReplayLearner, self._runner.algorithm)
        now = time.monotonic(), report.env_steps, team.num_updates
        if self._begin is None:
            self._begin = now if team.num_updates else None
            return
        span_s = now[0] - self._begin[0]
        self.figures = {
            "env_steps_per_s": (now[1] - self._begin[1]) / span_s,
            "updates_per_s": (now[2] - self._begin[2]) / span_s,
        }
        self.figures |= {
            name: value for name, value in report.metrics.items() if name.startswith(_HEALTH)
        }
        if span_s >= self._seconds:
            for line in report.health:
                say(line)
            raise _EnoughError


_HEALTH = ("collector", "ingest", "learner")


def in_the_loop(cfg: RunCfg, seconds: float) -> dict[str, float]:
    """Train without collectors: the learner collects."""
    env, runner = make_run(cfg)
    try:
        return timed(runner, seconds)
    finally:
        env.close()


def beside_collectors(cfg: RunCfg, seconds: float) -> dict[str, float]:
    """Train with collectors."""
    cfg = settled(cfg)
    torch.manual_seed(cfg.runner.seed)
    worlds = RemoteEnvSpec(cfg, torch.device(cfg.runner.learner_device))
    team = make_algorithm(cfg.algorithm, cfg.network, worlds.spec, worlds.device, 1)
    runner = AsyncRunner(worlds, team, cfg, LocalLauncher())
    figures = timed(runner, seconds)
    runner.check_counts()
    return figures


def timed(runner: Runner, seconds: float) -> dict[str, float]:
    """Run for so long."""
    timer = Timer(runner, seconds)
    with contextlib.suppress(_EnoughError):
        runner.learn([timer])
    return {name: round(value, 4) for name, value in timer.figures.items()}


def compare(arguments: argparse.Namespace) -> None:
    """Print rounds of both, and the median ratios."""
    loop = settings(arguments)
    loop = dataclasses.replace(loop, runner=dataclasses.replace(loop.runner, collectors=0))
    runner = dataclasses.replace(
        loop.runner,
        collectors=arguments.collectors,
        learner_device=arguments.learner_device or str(loop.sim.device),
    )
    sim = dataclasses.replace(loop.sim, num_threads=1)
    apart = dataclasses.replace(loop, runner=runner, sim=sim)
    ratios = []
    for number in range(arguments.rounds):
        both = {"in_the_loop": in_the_loop(loop, arguments.seconds)}
        both["collectors"] = beside_collectors(apart, arguments.seconds)
        emit(
            round=number, num_collectors=arguments.collectors, learner=runner.learner_device, **both
        )
        ratios.append(
            both["collectors"]["env_steps_per_s"] / both["in_the_loop"]["env_steps_per_s"]
        )
    emit(
        ratio_of_env_steps=round(statistics.median(ratios), 3),
        ratios=[round(x, 3) for x in ratios],
        num_envs=loop.env.num_envs,
        update_ratio=loop.algorithm.update_ratio,
        cores=num_cores(),
        load=os.getloadavg()[1],
    )


def count(arguments: argparse.Namespace) -> None:
    """Send transitions of toy worlds through all parts."""
    size = 512 * arguments.collectors * 16
    total = -(-arguments.transitions // size) * size
    cfg = toy_collectors.settings(
        arguments.collectors,
        512 * arguments.collectors,
        total,
        runner={"num_steps": 16},
        algorithm={
            "buffer_size": 200_000,
            "update_ratio": 0.0005,
            "batch_size": 256,
            "warmup": 10_000,
        },
    )
    runner = toy_collectors.make_runner(cfg)
    begin = time.monotonic()
    lags: list[float] = []
    note_lag = OnIteration(lambda report: lags.append(report.metrics["learner/policy_lag_max"]))
    runner.learn([note_lag])
    assert runner.pool is not None
    for line in runner.health():
        say(line)
    emit(
        sent=runner.pool.num_sent() * runner.limiter.block,
        received=runner.pool.num_received() * runner.limiter.block,
        stored=runner.limiter.num_stored,
        updates=runner.limiter.num_learned,
        counted=runner.limiter.num_counted,
        policy_lag_max=max(lags),
        seconds=round(time.monotonic() - begin, 1),
        load=os.getloadavg()[0],
    )


def main() -> None:
    """Compare, or count."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("compare", "count"), default="compare")
    parser.add_argument("--collectors", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--learner_device", help="default: that of the worlds")
    parser.add_argument("--transitions", type=int, default=1_000_000)
    add_settings(parser, "laptop_hasac")
    arguments = parser.parse_args()
    if torch.get_num_threads() > 1 and os.environ.get("OMP_NUM_THREADS") is None:
        say("Note: OMP_NUM_THREADS is not set; torch uses every core.")
    (count if arguments.what == "count" else compare)(arguments)


if __name__ == "__main__":
    main()
