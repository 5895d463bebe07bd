"""Time training on one rank and on several of one machine: weak scaling, strong scaling, and the
reasons of their losses.

``python benchmarks/scaling.py --ranks 4 [--preset cuboid_happo] [--num_envs 8192] [--set
section.key=value]`` starts ``torchrun`` once, measures one part after another, and prints a JSON
line each:

- ``alone``: one rank trains, the others wait,
- ``apart``: every rank trains alone, all at once and without messages,
- ``weak``: all ranks train together with ``--num_envs`` worlds on each rank, then with
  ``--more_envs`` on each,
- ``strong``: all ranks train together with ``--num_envs`` worlds in all.

``efficiency`` compares with ``alone``. ``env_steps_per_s`` is that of whole training, once every
graph exists, and of its two parts. ``iteration_s`` has the mean of each rank. ``late`` is the mean
over iterations of the slowest rank's collecting over the mean rank's. ``weights_are_equal`` is to
the last bit, on all ranks, at the end. With ``--messages``:

- ``messages_share``: the fraction of an iteration in message kernels, including the wait for other
  ranks, or on a CPU the fraction of time inside the calls,
- ``message_us``: one message at the largest gradient's length, with nobody late, and the number of
  messages per update.

``--set sim.device=cpu`` tries all parts on a CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from measuring import (
    GIB,
    OnIteration,
    add_settings,
    emit,
    lines_of_simulators,
    name_of,
    say,
    seconds,
    settings,
    used,
)
from torch.profiler import ProfilerActivity, profile

from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.distributed import launch
from harl_mapush.distributed.launch import Launch
from harl_mapush.distributed.ranks import ALONE, Ranks, UnequalRanksError
from harl_mapush.distributed.shares import compile_first, own_settings
from harl_mapush.process import seed_everything
from harl_mapush.runner import Runner
from mqe.registry import make_env, resolve_sim

WARM_ITERATIONS = 4  # graphs are recorded in the third
MESSAGES = 200  # of one timing
PARTS = ("alone", "apart", "weak", "strong")


def main() -> int:
    """Measure as one rank, or start the ranks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_settings(parser, "cuboid_happo")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--num_envs", type=int, default=8192)
    parser.add_argument("--more_envs", type=int, nargs="+", default=[])
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--messages", action="store_true", help="time messages as well")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    started = Launch.of_environment()
    if started.size == 1:
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
        ranks = ("--nproc_per_node", str(arguments.ranks))
        return subprocess.run([*torchrun, *ranks, *sys.argv], check=False).returncode
    return launch.run_to_exit(lambda: measure_all(arguments, started))


def measure_all(arguments: argparse.Namespace, started: Launch) -> int:
    """Measure all parts with this rank among the others. Rank 0 prints a line for each."""
    cfg = settings(arguments, env={"num_envs": arguments.num_envs})
    device = started.device(resolve_sim(cfg.sim)[1])
    with (
        torch.accelerator.device_index(device.index),
        launch.joined(started, device, lambda: "start again") as everyone,
        lines_of_simulators(),
    ):
        if device.type != "cpu":
            rank_cfg = own_settings(cfg, everyone, started, device)
            compile_first(rank_cfg, everyone, started)
        alone = None
        parts = []
        for part in arguments.parts:
            parts.append((part, arguments.num_envs))
            if part == "weak":
                parts += [("weak", num_envs) for num_envs in arguments.more_envs]
        for part, num_envs in parts:
            count = 1 if part == "alone" else everyone.size
            facts = None
            if everyone.rank < count:
                if part == "weak":
                    num_envs *= everyone.size
                facts = measure(arguments, part, num_envs, everyone, started, device)
            by_rank = [facts for facts in everyone.gather(facts) if facts is not None]
            line = summary(by_rank)
            rate = line["env_steps_per_s"]["training"]
            if part == "alone":
                alone = rate
            elif alone is not None:
                line["efficiency"] = rate / alone / count
            if everyone.is_first:
                names = {"device": name_of(device), "preset": arguments.preset}
                emit(part=part, ranks=count, **names, **line)
    return 0


def measure(
    arguments: argparse.Namespace,
    part: str,
    num_envs: int,
    everyone: Ranks,
    started: Launch,
    device: torch.device,
) -> dict[str, Any]:
    """Train on this rank's share of ``num_envs`` worlds. Return its figures."""
    cfg = settings(arguments, env={"num_envs": num_envs})
    seed = cfg.runner.seed
    ranks = everyone
    if part in ("alone", "apart"):
        seed += everyone.rank
        ranks = ALONE
    rank_cfg = own_settings(cfg, ranks, started, device)
    sim = dataclasses.replace(rank_cfg.sim, device=str(device))
    rank_cfg = dataclasses.replace(rank_cfg, sim=sim)
    seed_everything(seed)
    share = ranks.share(rank_cfg.env.num_envs)
    env = make_env(rank_cfg.env, rank_cfg.sim, rank_cfg.task, seed, share)
    spec = rank_cfg.algorithm.team_spec(env)
    algorithm = make_algorithm(rank_cfg.algorithm, rank_cfg.network, spec, device, seed, ranks)
    runner = Runner(env, algorithm, rank_cfg.runner, ranks=ranks)
    facts = time_training(runner, arguments.iterations)
    if arguments.messages and ranks.size > 1:
        facts |= share_of_messages(runner)
    facts["num_envs"] = num_envs
    facts["weights_are_equal"] = are_equal(ranks, algorithm.weights)
    facts["memory_gib"] = used(device) / GIB
    env.close()
    del runner, algorithm, env
    gc.collect()
    if device.type != "cpu":
        torch.cuda.empty_cache()
    return facts


def summary(by_rank: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one part's line from all its ranks' figures."""
    line = dict(by_rank[0])
    laps = [facts["collect_s"] for facts in by_rank]
    slowest = [max(iteration) for iteration in zip(*laps, strict=True)]
    line["late"] = sum(slowest) * len(laps) / sum(map(sum, laps))
    for name in ("iteration_s", "memory_gib"):
        line[name] = [facts[name] for facts in by_rank]
    line["collect_s"] = [sum(lap) / len(lap) for lap in laps]
    if not line.pop("together"):
        rates = [facts["env_steps_per_s"] for facts in by_rank]
        line["env_steps_per_s"] = {name: sum(rate[name] for rate in rates) for name in rates[0]}
    return line


def are_equal(ranks: Ranks, weights: dict[str, torch.Tensor]) -> bool:
    """Return whether all ranks hold the same weights to the last bit."""
    try:
        ranks.check_weights(weights)
    except UnequalRanksError as error:
        say(str(error))
        return False
    return True


def time_training(runner: Runner, iterations: int) -> dict[str, Any]:
    """Train, and return rates of all ranks together."""
    reports = []
    device = runner.env.device

    def on_iteration(report: Any) -> None:
        reports.append(report)
        runner.env.statistics()
        runner.ranks.gather(None)  # as the trainer does

    hooks = OnIteration(on_iteration)

    def learn(count: int) -> None:
        runner.progress.num_iterations = runner.progress.iteration + count
        runner.learn([hooks])

    learn(WARM_ITERATIONS)
    reports.clear()
    took = seconds(device, lambda: learn(iterations))
    steps = iterations * runner.progress.steps_per_iteration
    parts = {
        "collect": sum(r.collect_s for r in reports),
        "update": sum(r.update_s for r in reports),
    }
    rates = {"training": steps / took} | {name: steps / part for name, part in parts.items()}
    shares = {name: part / took for name, part in parts.items()}
    return {
        "env_steps_per_s": rates,
        "iteration_s": took / iterations,
        "collect_s": [report.collect_s for report in reports],
        "shares": shares,
        "together": runner.ranks.size > 1,
    }


def share_of_messages(runner: Runner) -> dict[str, Any]:
    """Return the messages' fraction of an iteration, and one message's time with nobody late."""
    device = runner.env.device
    ranks = runner.ranks

    def iterate() -> None:
        runner.collect()
        runner.update()

    ranks.gather(None)
    in_messages, count, took = (_on_cpu if device.type == "cpu" else _on_gpu)(runner, iterate)
    message = torch.zeros(
        max(len(flat) for flat in runner.algorithm.weights.values()), device=device
    )

    def send() -> None:
        for _ in range(MESSAGES):
            ranks.mean_(message)

    send()
    return {
        "messages_share": in_messages / took,
        "messages_an_iteration": count,
        "message_us": seconds(device, send) / MESSAGES * 1e6,
        "message_kb": message.nbytes / 1e3,
    }


def _on_gpu(runner: Runner, work: Callable[[], None]) -> tuple[float, int, float]:
    """Return the time [s] and number of all message kernels, and the duration of ``work`` [s]."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        took = seconds(runner.env.device, work)
    events = [event for event in profiler.key_averages() if "nccl" in event.key.lower()]
    return (
        sum(event.self_device_time_total for event in events) / 1e6,
        sum(event.count for event in events),
        took,
    )


def _on_cpu(runner: Runner, work: Callable[[], None]) -> tuple[float, int, float]:
    """Return the seconds inside all calls and their number, and the seconds of ``work``."""
    times: list[float] = []
    send = runner.ranks._all_reduce

    def timed(*message: Any) -> None:
        start = time.perf_counter()
        send(*message)
        times.append(time.perf_counter() - start)

    runner.ranks._all_reduce = timed  # type: ignore[method-assign]
    took = seconds(runner.env.device, work)
    runner.ranks._all_reduce = send  # type: ignore[method-assign]
    return sum(times), len(times), took


if __name__ == "__main__":
    sys.exit(main())
