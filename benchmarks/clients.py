"""How much each client adds to a decision of our own environment: ``python benchmarks/clients.py``.

Two measurements, both on the host and in CPU seconds, which other programs on the machine disturb
little. ``added_ms``: a decision of ``--num_envs`` worlds whose results exist already, so that all
of the time is the client's. ``lost``: a decision of ``--real_envs`` worlds in MuJoCo through the
client, and one through our own environment, in turn; the share by which the first is longer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import emit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harl_mapush import config  # noqa: E402
from harl_mapush.clients.entries import CLIENTS  # noqa: E402
from harl_mapush.clients.harl.harl_env import HarlEnv  # noqa: E402
from harl_mapush.clients.openrl_env import OpenRLEnv  # noqa: E402
from harl_mapush.clients.worlds import Worlds  # noqa: E402
from tests.support.placed import PlacedEnv  # noqa: E402

DONE_RATE = 0.01  # of worlds, at each decision of the first measurement
_WARM_ROUNDS = 3

Step = Callable[[], object]


class _MadeWorlds(Worlds):
    """Settings whose worlds exist already."""

    env: Any

    def build(self, seed: int | None = None) -> Any:
        return self.env


def main() -> None:
    """Measure all clients; write one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_envs", type=int, default=4096)
    parser.add_argument("--real_envs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in ("torchrl", "skrl", "gymnasium", "harl", "openrl"):
        num_agents = 1 if name == "gymnasium" else 2
        placed = PlacedEnv(arguments.num_envs, num_agents, "cpu", DONE_RATE)
        added = [
            1e3 * (through - own)
            for own, through in pairs(own_step(placed), client_step(name, placed), arguments.rounds)
        ]
        task = "go1_velocity" if name == "gymnasium" else "go1push_mid"
        own, client = (real_worlds(task, arguments.real_envs) for _ in range(2))
        both = pairs(own_step(own), client_step(name, client), arguments.rounds)
        lost = [through / alone - 1.0 for alone, through in both]
        emit(
            client=name,
            num_envs=arguments.num_envs,
            rounds=arguments.rounds,
            added_ms=statistics.median(added),
            added_ms_interval=interval(added),
            real_envs=arguments.real_envs,
            own_ms=1e3 * statistics.median(alone for alone, _ in both),
            lost=statistics.median(lost),
            lost_interval=interval(lost),
        )
        own.close()
        client.close()


def real_worlds(task: str, num_envs: int) -> Any:
    """Build worlds in MuJoCo on one thread."""
    settings = {
        "env": {"num_envs": num_envs},
        "sim": {"name": "mujoco", "device": "cpu", "num_threads": 1},
        "task": {"name": task},
    }
    return Worlds(config.resolve(settings, {})[0]).build()


def own_step(env: Any) -> Step:
    """Return a decision of our own environment."""
    env.reset()
    actions = torch.zeros(env.num_envs, env.num_agents, env.spec.action_size)
    return lambda: env.step(actions)


def client_step(name: str, env: Any) -> Step:
    """Return a decision through a client, with actions as the client takes them."""
    shape = (env.num_envs, env.num_agents, env.spec.action_size)
    if name in ("harl", "openrl"):
        client: Any = HarlEnv(env) if name == "harl" else OpenRLEnv(env, "go1push_mid")
        client.reset()
        array = np.zeros(shape, np.float32)
        return lambda: client.step(array)

    worlds = _MadeWorlds(config.resolve({}, {})[0])
    object.__setattr__(worlds, "env", env)
    if name == "gymnasium":
        client = CLIENTS[name](worlds, output="torch")
        client.reset()
        actions = torch.zeros(env.num_envs, env.spec.action_size)
        return lambda: client.step(actions)
    client = CLIENTS[name](worlds)
    if name == "skrl":
        client.reset()
        by_agent = {agent: torch.zeros(env.num_envs, 3) for agent in client.agents}
        return lambda: client.step(by_agent)
    tensordict = client.reset().set(("agents", "action"), torch.zeros(*shape))
    return lambda: client.step(tensordict)


def pairs(first: Step, second: Step, num_rounds: int) -> list[tuple[float, float]]:
    """Return the CPU seconds of both, called in turn; each is the first of a round as often."""
    timed = []
    for i in range(_WARM_ROUNDS + num_rounds):
        order = (first, second) if i % 2 else (second, first)
        taken = {step: cpu_seconds(step) for step in order}
        timed.append((taken[first], taken[second]))
    return timed[_WARM_ROUNDS:]


def cpu_seconds(step: Step) -> float:
    """Return the CPU seconds of this process during a call."""
    start = time.process_time()
    step()
    return time.process_time() - start


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by its order statistics."""
    ordered = sorted(values)
    spread = 0.98 * len(ordered) ** 0.5  # 1.96 standard deviations of a binomial of one half
    low = max(int(len(ordered) / 2 - spread), 0)
    high = min(int(len(ordered) / 2 + spread), len(ordered) - 1)
    return ordered[low], ordered[high]


if __name__ == "__main__":
    main()
