"""Time added by each client to a decision in our own environment: ``python benchmarks/clients.py``.

``added_ms``: a decision in ``--num_envs`` worlds with prepared results, so all time is the
client's. ``lost``: decisions in ``--real_envs`` worlds through the client and through our own
environment, in turn, as the relative extra time of the client. On a CPU both are CPU seconds,
nearly independent from other programs on the machine. On a GPU (``--device cuda``) they are wall
clock until the device has finished, and ``synchronizations`` counts a decision's operations with a
host wait. A client without its library is skipped, with a line.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import emit, name_of, say, seconds

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harl_mapush import config  # noqa: E402
from harl_mapush.clients.entries import CLIENTS  # noqa: E402
from harl_mapush.clients.harl.harl_env import HarlEnv  # noqa: E402
from harl_mapush.clients.harl.mapush_env import MAPushEnv  # noqa: E402
from harl_mapush.clients.worlds import Worlds  # noqa: E402
from mqe.config import ConfigError  # noqa: E402
from mqe.extensions import load_extensions  # noqa: E402
from tests.support.placed import PlacedEnv  # noqa: E402

NAMES = ("torchrl", "gymnasium", "harl")
DONE_RATE = 0.01  # of worlds, at each decision of the first measurement
_WARM_ROUNDS = 3
_SYNCHRONIZED_CALLS = 10

Step = Callable[[], object]


class _MadeHarl(MAPushEnv):
    """HARL's environment over existing worlds."""

    def __init__(self, env: Any) -> None:
        self._made = env
        super().__init__({"n_threads": env.num_envs, "num_agents": env.num_agents})

    def _make(self, seed: int) -> Any:
        return self._made


class _MadeWorlds(Worlds):
    """Settings for existing worlds."""

    env: Any

    def build(self, seed: int | None = None) -> Any:
        return self.env


def main() -> None:
    """Measure all clients and write one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--num_envs", type=int, default=4096)
    parser.add_argument("--real_envs", type=int, default=64)
    parser.add_argument("--decision_period", type=int, default=1, help="control steps")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    load_extensions()
    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    real: dict[str, Any] = {}
    for name in arguments.clients:
        num_agents = 1 if name == "gymnasium" else 2
        placed = PlacedEnv(arguments.num_envs, num_agents, arguments.device, DONE_RATE)
        try:
            step = client_step(name, placed)
        except ConfigError as error:
            say(f"{name} is left out: {error}")
            continue
        both = pairs(own_step(placed), step, arguments.rounds, device)
        added = [1e3 * (through - direct) for direct, through in both]

        task = "go1_velocity" if name == "gymnasium" else "go1push_mid"
        if task not in real:
            real[task] = real_worlds(task, arguments)
        direct = own_step(real[task])
        step = client_step(name, real[task])
        both = pairs(direct, step, arguments.rounds, device)
        lost = [through / alone - 1.0 for alone, through in both]
        emit(
            client=name,
            device=name_of(device),
            num_envs=arguments.num_envs,
            rounds=arguments.rounds,
            added_ms=statistics.median(added),
            added_ms_interval=interval(added),
            real_envs=arguments.real_envs,
            decision_period=real[task].decision_period,
            own_ms=1e3 * statistics.median(alone for alone, _ in both),
            lost=statistics.median(lost),
            lost_interval=interval(lost),
            synchronizations=synchronizations(step) if device.type == "cuda" else None,
            own_synchronizations=synchronizations(direct) if device.type == "cuda" else None,
        )
    for env in real.values():
        env.close()


def real_worlds(task: str, arguments: argparse.Namespace) -> Any:
    """Build worlds: in MuJoCo on one thread, or in MuJoCo Warp on a GPU."""
    settings: dict[str, Any] = {
        "env": {"num_envs": arguments.real_envs},
        "sim": {"name": "auto", "device": arguments.device, "num_threads": 1},
        "task": {"name": task},
    }
    if task == "go1push_mid":
        settings["task"]["decision_period"] = arguments.decision_period
    return Worlds(config.resolve(settings, {})[0]).build()


def own_step(env: Any) -> Step:
    """Return a decision of our own environment."""
    env.reset()
    actions = torch.zeros(env.num_envs, env.num_agents, env.spec.action_size, device=env.device)
    return lambda: env.step(actions)


def client_step(name: str, env: Any) -> Step:
    """Return a decision through a client, with actions as the client takes them."""
    shape = (env.num_envs, env.num_agents, env.spec.action_size)
    if name == "harl":
        client: Any = HarlEnv(env) if isinstance(env, PlacedEnv) else _MadeHarl(env)
        client.reset()
        array = np.zeros(shape, np.float32)
        return lambda: client.step(array)

    worlds = _MadeWorlds(config.resolve({}, {})[0])
    object.__setattr__(worlds, "env", env)
    if name == "gymnasium":
        client = CLIENTS[name](worlds, output="torch")
        client.reset()
        actions = torch.zeros(env.num_envs, env.spec.action_size, device=env.device)
        return lambda: client.step(actions)
    client = CLIENTS[name](worlds)
    actions = torch.zeros(*shape, device=env.device)
    tensordict = client.reset().set(("agents", "action"), actions)
    return lambda: client.step(tensordict)


def pairs(
    first: Step, second: Step, num_rounds: int, device: torch.device
) -> list[tuple[float, float]]:
    """Return the seconds of two functions in each round. They alternate in order."""

    def taken(step: Step) -> float:
        return cpu_seconds(step) if device.type == "cpu" else seconds(device, step)

    timed = []
    for i in range(_WARM_ROUNDS + num_rounds):
        order = (first, second) if i % 2 else (second, first)
        times = {step: taken(step) for step in order}
        timed.append((times[first], times[second]))
    return timed[_WARM_ROUNDS:]


def cpu_seconds(step: Step) -> float:
    """Return the CPU seconds of this process during a call."""
    start = time.process_time()
    step()
    return time.process_time() - start


def synchronizations(step: Step) -> float:
    """Return a call's number of operations with a host wait for the GPU."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(_SYNCHRONIZED_CALLS):
                step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waited = [one for one in caught if "synchronizing" in str(one.message)]
    return len(waited) / _SYNCHRONIZED_CALLS


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by its order statistics."""
    ordered = sorted(values)
    spread = 0.98 * len(ordered) ** 0.5  # 1.96 standard deviations of a binomial of one half
    low = max(int(len(ordered) / 2 - spread), 0)
    high = min(int(len(ordered) / 2 + spread), len(ordered) - 1)
    return ordered[low], ordered[high]


if __name__ == "__main__":
    main()
