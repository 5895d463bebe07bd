"""Time training on one rank and on several: weak scaling, strong scaling, and message costs between
ranks.

``python benchmarks/scaling.py --ranks 2 [--preset cuboid_happo] [--num_envs 8192] [--set
section.key=value]`` starts ``torchrun`` for one rank and for ``--ranks``, with ``--num_envs``
worlds on each rank (weak) and in all (strong), and prints a JSON line each, then the efficiencies.
A single measurement by hand:

``torchrun --nproc_per_node 2 benchmarks/scaling.py --preset cuboid_happo --num_envs 16384``, worlds
in all.

- ``env_steps_per_s``: in whole training, once every graph exists, and in its two parts,
- ``messages_share``: the fraction of an iteration in message kernels, including the wait for other
  ranks, or on a CPU the fraction of time inside the calls,
- ``message_us``: one message at the largest gradient's length, with nobody late, and the number of
  messages per update,
- ``weights_are_equal``: to the last bit, on all ranks, at the end.

``--set sim.device=cpu`` tries all parts on a CPU.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
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
from harl_mapush.distributed.ranks import Ranks, UnequalRanksError
from harl_mapush.distributed.shares import compile_first, few_worlds, own_settings
from harl_mapush.memory_plan import plan_memory
from harl_mapush.process import seed_everything
from harl_mapush.runner import Runner
from mqe.registry import make_env, resolve_sim

WARM_ITERATIONS = 4  # graphs are recorded in the third
MESSAGES = 200  # of one timing


def main() -> int:
    """Measure as one rank, or start the ranks and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_settings(parser, "cuboid_happo")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--num_envs", type=int, default=8192)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument(
        "--here", action="store_true", help="measure in this process, also where it is the only one"
    )
    arguments = parser.parse_args()
    started = Launch.of_environment()
    if started.size == 1 and not arguments.here:
        return compare(arguments)
    return launch.run_to_exit(lambda: measure(arguments, started))


def compare(arguments: argparse.Namespace) -> int:
    """Start one rank, and several in both ways, and print the efficiencies."""
    ranks = arguments.ranks
    envs_per_rank = arguments.num_envs
    one = start(arguments, 1, envs_per_rank)
    weak = start(arguments, ranks, ranks * envs_per_rank)
    strong = start(arguments, ranks, envs_per_rank)
    for name, result in (("weak", weak), ("strong", strong)):
        efficiency = (
            result["env_steps_per_s"]["training"] / one["env_steps_per_s"]["training"] / ranks
        )
        emit(
            scaling=name,
            ranks=ranks,
            efficiency=efficiency,
            weights_are_equal=result["weights_are_equal"],
        )
    return 0


def start(arguments: argparse.Namespace, ranks: int, num_envs: int) -> dict[str, Any]:
    """Measure in new processes, and return the first process's output."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        str(ranks),
        __file__,
        "--here",
    ]
    command += [
        "--preset",
        arguments.preset,
        "--num_envs",
        str(num_envs),
        "--iterations",
        str(arguments.iterations),
    ]
    command += [word for text in arguments.set for word in ("--set", text)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    sys.stdout.write(done.stdout)
    sys.stdout.flush()
    return json.loads(done.stdout.splitlines()[-1])


def measure(arguments: argparse.Namespace, started: Launch) -> int:
    """Train on this rank's worlds. Rank 0 prints a line."""
    cfg = settings(arguments, env={"num_envs": arguments.num_envs})
    name, device = resolve_sim(cfg.sim)
    device = started.device(device)
    with (
        torch.accelerator.device_index(device.index),
        launch.joined(started, device, lambda: "start again") as ranks,
        lines_of_simulators(),
    ):
        rank_cfg = own_settings(cfg, ranks, started, device)
        plan = plan_memory(rank_cfg, name, device, ranks.size, started.local_size)
        if ranks.size > 1 and device.type != "cpu":
            make_worlds = functools.partial(few_worlds, rank_cfg.env, rank_cfg.sim, rank_cfg.task)
            compile_first(make_worlds, rank_cfg.env.num_envs, ranks, started)
        seed_everything(cfg.runner.seed)
        env = make_env(
            rank_cfg.env,
            rank_cfg.sim,
            rank_cfg.task,
            cfg.runner.seed,
            ranks.share(rank_cfg.env.num_envs),
        )
        algorithm = make_algorithm(
            rank_cfg.algorithm, rank_cfg.network, env.spec, device, cfg.runner.seed, ranks
        )
        runner = Runner(env, algorithm, rank_cfg.runner, ranks=ranks)
        facts = time_training(runner, arguments.iterations)
        facts |= share_of_messages(runner) if ranks.size > 1 else {}
        is_equal = are_equal(ranks, algorithm.weights)
        memory = ranks.gather(used(device) / GIB)
        if ranks.is_first:
            emit(
                ranks=ranks.size,
                device=name_of(device),
                preset=arguments.preset,
                num_envs=cfg.env.num_envs,
                **facts,
                weights_are_equal=is_equal,
                memory_gib=memory,
                memory_planned_gib=plan.needed / GIB,
            )
        env.close()
    return 0


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
    return {"env_steps_per_s": rates, "iteration_s": took / iterations, "shares": shares}


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
