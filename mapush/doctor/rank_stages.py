"""The doctor's check of several ranks: a sum, the speed of messages, equal weights after training.

``torchrun --nproc_per_node 2 -m mapush.doctor.rank_stages [--preset NAME] [--device cpu]`` prints
one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from harl_mapush import config
from harl_mapush.distributed import launch
from harl_mapush.distributed.launch import Launch
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.distributed.shares import compile_first
from harl_mapush.process import seed_everything
from mapush.doctor.checkup import Checkup
from mqe.registry import resolve_sim

NUM_WORLDS = 8  # on each rank
_LONG = 2**24  # numbers in a message that measures the bandwidth
_SHORT = 2**14  # numbers in a message of a gradient's size
_REPEATS = 10
_UPDATES = 4  # CUDA graphs are captured in the third
_TIMEOUT_S = 600.0


def start(num_ranks: int, preset: str, device: str) -> dict[str, Any]:
    """Check ``num_ranks`` ranks in new processes; return their findings or raise RuntimeError."""
    words = [
        "--nproc_per_node",
        str(num_ranks),
        "-m",
        "mapush.doctor.rank_stages",
        "--preset",
        preset,
        "--device",
        device,
    ]
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    ours = [
        line
        for line in done.stderr.splitlines()
        if line.startswith(("rank ", _PROGRAM)) or "Error: " in line
    ]
    raise RuntimeError(ours[0] if ours else f"torchrun ended with exit code {done.returncode}")


def main(argv: Sequence[str] | None = None) -> int:
    """Check the ranks that ``torchrun`` started; rank 0 prints the findings."""
    program = launch.name_rank(_PROGRAM)
    return launch.run_to_exit(
        lambda: config.exit_code(lambda: _main(argv), program, launch.write_error)
    )


def _main(argv: Sequence[str] | None) -> int:
    parser = config.Parser(prog=_PROGRAM)
    parser.add_argument("--preset", default=config.DEFAULT_PRESET)
    config.add_flags(parser, ("--device",))
    arguments = parser.parse(argv)
    started = Launch.of_environment()
    cfg, _ = config.resolve(config.load_preset(arguments.preset), config.flag_values(arguments))
    name, device = resolve_sim(cfg.sim)
    device = started.device(device)
    with (
        torch.accelerator.device_index(device.index),
        launch.joined(started, device, lambda: "run the check again") as ranks,
    ):
        facts: dict[str, Any] = {"ranks": ranks.size, "device": device.type}
        _check_sum(ranks, device)
        seconds = _timed(ranks, device, _LONG)
        facts["bandwidth_gb_s"] = 4e-9 * _LONG * 2.0 * (ranks.size - 1) / ranks.size / seconds
        facts["message_us"] = 1e6 * _timed(ranks, device, _SHORT)
        checkup = Checkup(cfg, sim_name=name, device=device)
        checkup.place(str(device))
        if device.type != "cpu":
            compile_first(checkup.cfg, ranks, started)
        seed_everything(cfg.runner.seed)
        checkup.build(NUM_WORLDS, ranks)
        facts["num_weights"] = _check_weights(ranks, checkup)
        checkup.close()
        if ranks.is_first:
            sys.stdout.write(json.dumps(facts) + "\n")
    return 0


def _check_sum(ranks: Ranks, device: torch.device) -> None:
    """Raise RuntimeError if a sum over all ranks is wrong."""
    count = torch.arange(1000, dtype=torch.float64, device=device)
    wanted = count * sum(range(1, ranks.size + 1))
    total = count * (ranks.rank + 1)
    ranks.sum_(total)
    if not torch.equal(total, wanted):
        raise RuntimeError("an all-reduce gives a wrong sum")


def _timed(ranks: Ranks, device: torch.device, count: int) -> float:
    """Return the time [s] of an all-reduce of ``count`` float32."""
    message = torch.zeros(count, device=device)

    def send() -> None:
        for _ in range(_REPEATS):
            ranks.mean_(message)
        if device.type != "cpu":
            torch.cuda.synchronize(device)

    send()
    return _seconds(send) / _REPEATS


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _check_weights(ranks: Ranks, checkup: Checkup) -> int:
    """Train a little; return the number of weights, which must be bit-identical on all ranks."""
    runner = checkup.runner
    assert runner is not None
    runner.start()
    for _ in range(_UPDATES):
        runner.collect()
        runner.update()
        runner.progress.iteration += 1
    ranks.check_weights(runner.algorithm.weights)
    return sum(flat.numel() for flat in runner.algorithm.weights.values())


_PROGRAM = "python -m mapush.doctor.rank_stages"

if __name__ == "__main__":
    sys.exit(main())
