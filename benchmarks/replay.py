"""Time the replay beside TorchRL's storage and sampler, and beside the update that it serves; one
JSON line.

``python benchmarks/replay.py [--device cuda] [--num_envs 64] [--batch_size 1024] [--capacity
1000000] [--rounds 15]``

TorchRL is no dependency: without it (``pip install torchrl``) only our own replay and the update
are timed. Sizes are those of two robots and the box. Parts take turns within a round; figures are
medians over rounds, milliseconds a call.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Callable

import torch
from measuring import emit, interleaved

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.learning.off_policy.replay_buffer import RingReplay, Transition, replay_shape
from harl_mapush.learning.settings import NetworkCfg
from mqe.vec_env import TeamSpec

AGENTS = 2
OBS = 10
STATE = 17
ACTION = 3
CALLS = 20  # of each part a round


def transition(num_envs: int, device: torch.device) -> Transition:
    """Make up one decision of every environment, a thousandth of them broken."""

    def draw(*size: int) -> torch.Tensor:
        return torch.rand(num_envs, *size, device=device)

    done = draw() < 0.01
    valid = draw() >= 0.001
    return Transition(
        obs=draw(AGENTS, OBS),
        state=draw(1, STATE),
        actions=draw(AGENTS, ACTION),
        active=draw(AGENTS) < 2.0,
        rewards=draw(1),
        next_obs=draw(AGENTS, OBS),
        next_state=draw(1, STATE),
        terminated=done & (draw() < 0.5),
        done=done | ~valid,
        valid=valid,
    )


def torchrl_parts(
    arguments: argparse.Namespace, step: Transition
) -> dict[str, Callable[[], object]]:
    """Return adding and sampling by TorchRL, in memory of the same device; nothing where it is not
    installed.

    One step at a time, and broken transitions are drawn like others: less than what ours does.
    """
    if importlib.util.find_spec("torchrl") is None:
        return {}
    from tensordict import TensorDict  # type: ignore[import-not-found]
    from torchrl.data import LazyTensorStorage, ReplayBuffer  # type: ignore[import-not-found]

    buffer = ReplayBuffer(
        storage=LazyTensorStorage(arguments.capacity, device=arguments.device),
        batch_size=arguments.batch_size,
    )
    rows = TensorDict(step._asdict(), batch_size=[arguments.num_envs])
    fill = TensorDict(
        {k: v[:1].expand(arguments.capacity, *v.shape[1:]) for k, v in step._asdict().items()}
    )
    fill.batch_size = [arguments.capacity]
    buffer.extend(fill)
    return {"torchrl add": lambda: buffer.extend(rows), "torchrl sample": buffer.sample}


def our_parts(arguments: argparse.Namespace, step: Transition) -> dict[str, Callable[[], object]]:
    """Return adding and sampling by our ring, one step and three at a time, and one update of
    HASAC.
    """
    parts: dict[str, Callable[[], object]] = {}
    device = step.obs.device
    shape = replay_shape(
        arguments.capacity,
        arguments.num_envs,
        num_agents=AGENTS,
        obs_size=OBS,
        action_size=ACTION,
        num_views=1,
        state_size=STATE,
    )
    for n_step in (1, 3):
        ring = RingReplay(shape, n_step, 0.99, torch.Generator(device), device)
        for _ in range(shape.num_rows if n_step == 3 else 0):
            ring.add(step)
        if n_step == 3:
            parts["add"] = lambda ring=ring: ring.add(step)
            single = ring
    looker = RingReplay.__new__(RingReplay)
    looker.__dict__.update(single.__dict__, num_steps=1)
    parts["sample, 1 step"] = lambda: looker.sample(arguments.batch_size)
    parts["sample, 3 steps"] = lambda: single.sample(arguments.batch_size)
    entry = ALGORITHMS["hasac"]
    sizes = tuple(arguments.hidden_sizes)
    spec = TeamSpec((OBS,) * AGENTS, (ACTION,) * AGENTS, STATE, "EP")
    team = entry.cls(entry.cfg(batch_size=arguments.batch_size), NetworkCfg(sizes), spec, device)
    batch = single.sample(arguments.batch_size)
    parts["update"] = lambda: team.learn(batch)
    return parts


def main() -> None:
    """Time every part in turns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--num_envs", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--hidden_sizes", type=int, nargs="+", default=[128, 128])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    step = transition(arguments.num_envs, device)
    parts = our_parts(arguments, step) | torchrl_parts(arguments, step)
    times = interleaved(device, parts, arguments.rounds, CALLS)
    medians = {name: round(statistics.median(found), 4) for name, found in times.items()}
    settings = vars(arguments) | {"threads": torch.get_num_threads()}
    emit(ms=medians, settings=settings)


if __name__ == "__main__":
    main()
