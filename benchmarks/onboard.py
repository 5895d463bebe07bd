"""The cost of the onboard senses: env.step with exact observations over env.step with them.

``python benchmarks/onboard.py`` steps two environments of the preset ``onboard`` in turns, on one
core, and prints the CPU time of a decision in each and the ratio of their speeds.
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
from mqe.registry import SimCfg, make_env


def build(senses: str, num_envs: int) -> MultiAgentEnv:
    """Return worlds of the preset with the senses ``senses``."""
    over = {"env": {"num_envs": num_envs}, "task": {"senses": {"name": senses}}}
    cfg = config.resolve(config.load_preset("onboard"), over)[0]
    return make_env(cfg.env, SimCfg("mujoco", "cpu", 1), cfg.task, 0)


def main() -> None:
    """Write the CPU time [ms] of a decision with each of both, and the ratio of speeds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num_envs", type=int, default=64)
    parser.add_argument("--decisions", type=int, default=40)
    arguments = parser.parse_args()
    load_extensions()
    torch.set_num_threads(1)
    envs = {name: build(name, arguments.num_envs) for name in ("exact", "onboard")}
    times: dict[str, list[float]] = {name: [] for name in envs}
    for env in envs.values():
        env.reset()
    shape = (arguments.num_envs, 2, 3)
    for _ in range(arguments.decisions):
        actions = 2.0 * torch.rand(shape) - 1.0
        for name, env in envs.items():
            start = time.process_time()
            env.step(actions)
            times[name].append(time.process_time() - start)
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
