"""A run's memory on its device.

``python benchmarks/gpu_memory.py [--preset cuboid_happo] [--num_envs 256 4096] [--iterations 3]
[--set ...]`` trains a few iterations at each number of worlds, each in its own process, and prints
one JSON line for each: the memory in use [GiB] after every stage, and the largest of them.
``peak_gib`` is the maximum in use, sampled 50 times a second. Both count everything on the device
(total minus free).
"""

from __future__ import annotations

import argparse
import sys

import torch
from measuring import (
    GIB,
    Watch,
    add_settings,
    alone,
    emit,
    lines_of_simulators,
    make_run,
    name_of,
    settings,
    used,
)


def main() -> int:
    """Measure every size, or the parent process's single size."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_settings(parser, "cuboid_happo")
    parser.add_argument("--num_envs", type=int, nargs="+", default=[256, 4096, 8192, 16384, 32768])
    parser.add_argument("--num_steps", type=int, default=None)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--here", action="store_true", help="in this process, for one size")
    arguments = parser.parse_args()
    if arguments.here:
        measure(arguments, arguments.num_envs[0])
        return 0
    return measure_all(
        arguments.preset,
        arguments.set,
        arguments.num_envs,
        arguments.num_steps,
        arguments.iterations,
    )


def measure_all(
    preset: str,
    changes: list[str],
    sizes: list[int],
    num_steps: int | None = None,
    iterations: int = 3,
) -> int:
    """Print one line per size and return the worst exit code."""
    words = ["--preset", preset, "--iterations", str(iterations)]
    words += [] if num_steps is None else ["--num_steps", str(num_steps)]
    words += [word for text in changes for word in ("--set", text)]
    return max(alone(__file__, *words, "--here", "--num_envs", str(num_envs)) for num_envs in sizes)


def measure(arguments: argparse.Namespace, num_envs: int) -> None:
    """Print one line."""
    runner_cfg = {} if arguments.num_steps is None else {"num_steps": arguments.num_steps}
    cfg = settings(arguments, env={"num_envs": num_envs}, runner=runner_cfg)
    device = torch.device(cfg.sim.device)
    stages = {"context": used(device) / GIB}
    with Watch(device) as watch, lines_of_simulators():
        env, runner = make_run(cfg)
        stages["built"] = used(device) / GIB
        runner.start()
        stages["reset"] = used(device) / GIB
        for iteration in range(arguments.iterations):
            runner.collect()
            stages[f"collect_{iteration}"] = used(device) / GIB
            runner.update()
            stages[f"update_{iteration}"] = used(device) / GIB
            env.grow_buffers()
    measured = max(stages.values())
    emit(
        part="memory",
        device=name_of(device),
        preset=arguments.preset,
        num_envs=num_envs,
        num_steps=cfg.runner.num_steps,
        measured_gib=measured,
        peak_gib=max(watch.peak / GIB, measured),
        stages=stages,
        torch=_torch_memory(device),
    )
    env.close()


def _torch_memory(device: torch.device) -> dict[str, float]:
    if device.type == "cpu":
        return {}
    return {
        "allocated_peak": torch.cuda.max_memory_allocated(device) / GIB,
        "reserved": torch.cuda.memory_reserved(device) / GIB,
    }


if __name__ == "__main__":
    sys.exit(main())
