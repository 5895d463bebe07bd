"""The cost of the onboard senses: env.step with exact observations over env.step with them.

``python benchmarks/onboard.py`` steps two environments of the preset ``onboard`` in turns, on one
core, and prints the CPU time of a decision in each and the ratio of their speeds. With ``--device
cuda --num_envs 4096`` it times passes of 20 decisions on a GPU.
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

ON_GPU = 20  # decisions of a pass between two waits for the device


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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num_envs", type=int, default=64)
    parser.add_argument("--num_agents", type=int, default=2)
    parser.add_argument("--decisions", type=int, default=40, help="passes on a GPU")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    load_extensions()
    torch.set_num_threads(1)
    sim = SimCfg("auto", arguments.device, 1)
    _, device = resolve_sim(sim)
    num_decisions = ON_GPU if device.type == "cuda" else 1
    shape = (arguments.num_envs, arguments.num_agents, 3)
    envs = {name: build(name, *shape[:2], sim) for name in ("exact", "onboard")}
    times: dict[str, list[float]] = {name: [] for name in envs}
    for env in envs.values():
        env.reset()
    for _ in range(arguments.decisions):
        actions = 2.0 * torch.rand(shape, device=device) - 1.0
        for name, env in envs.items():
            start = clock(device)
            for _ in range(num_decisions):
                env.step(actions)
            times[name].append((clock(device) - start) / num_decisions)
    exact, onboard = (median(times[name][5:]) for name in ("exact", "onboard"))
    ratio = median(
        first / second for first, second in zip(times["exact"], times["onboard"], strict=True)
    )
    sys.stdout.write(
        f"{arguments.num_envs} worlds: exact {1e3 * exact:.1f} ms, onboard {1e3 * onboard:.1f} ms, "
        f"speed ratio {ratio:.3f}\n"
    )


if __name__ == "__main__":
    main()
