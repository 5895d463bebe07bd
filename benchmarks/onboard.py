"""The cost of the onboard senses: env.step with exact observations over env.step with them.

``python benchmarks/onboard.py`` steps two environments of the preset ``onboard`` in turns, on one
core, and prints the CPU time of a decision in each and the ratio of their speeds. With ``--device
cuda --num_envs 4096`` it times passes of 4 decisions on a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median

import torch

from harl_mapush import config
from mqe.env.environment import MultiAgentEnv
from mqe.extensions import load_extensions
from mqe.registry import SimCfg, make_env, resolve_sim

ON_GPU = 4  # decisions of a pass between two waits for the device


def build(senses: str, num_envs: int, num_agents: int, sim: SimCfg) -> MultiAgentEnv:
    """Return worlds of the preset with the senses ``senses``."""
    env = {"num_envs": num_envs, "num_agents": num_agents}
    over = {"env": env, "task": {"senses": {"name": senses}}}
    cfg = config.resolve(config.load_preset("onboard"), over)[0]
    return make_env(cfg.env, sim, cfg.task, 0)


def clock(device: torch.device) -> float:
    """Return the CPU time [s], or the time at which a GPU has nothing left to do."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    """Write the time [ms] of a decision with each of both, and the ratio of speeds."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--num_envs", type=int, default=64)
    parser.add_argument("--num_agents", type=int, default=2)
    parser.add_argument("--passes", type=int, default=12, help="timed after one that is not")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    load_extensions()
    torch.set_num_threads(1)
    sim = SimCfg("auto", arguments.device, 1)
    _, device = resolve_sim(sim)
    num_decisions = ON_GPU if device.type == "cuda" else 1
    shape = (arguments.num_envs, arguments.num_agents, 3)
    envs = [build(name, *shape[:2], sim) for name in ("exact", "onboard")]
    for env in envs:
        env.reset()

    times: list[list[float]] = [[], []]  # [s] of a decision
    for number in range(arguments.passes + 1):
        actions = 2.0 * torch.rand(shape, device=device) - 1.0
        for env, seconds in zip(envs, times, strict=True):
            start = clock(device)
            for _ in range(num_decisions):
                env.step(actions)
            seconds.append((clock(device) - start) / num_decisions)
        report(f"pass {number}", times[0][-1], times[1][-1])
    report(f"{arguments.num_envs} worlds", median(times[0][1:]), median(times[1][1:]))


def report(label: str, exact: float, onboard: float) -> None:
    """Write a line with the times [s] of a decision, and the ratio of speeds."""
    sys.stdout.write(
        f"{label}: exact {1e3 * exact:.1f} ms, onboard {1e3 * onboard:.1f} ms, speed ratio "
        f"{exact / onboard:.3f}\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
