"""Off-policy learning beside upstream HARL's, and its switches on a toy; JSON lines.

``python benchmarks/off_policy.py update [--batch_size 1000] [--hidden_sizes 256 256]`` times
updates of HASAC, HATD3, the draw of the batch included, on the same made-up transitions, in turns:
upstream's, ours under ``compat=harl``, ours.

``python benchmarks/off_policy.py switches [--seeds 3]`` learns the toy of the tests with single
settings changed, and prints the mean reward of blocks of 20 decisions (1 is best), and the settings
that were in force.

``python benchmarks/off_policy.py parts [--preset laptop_hasac] [--set section.key=value]`` times
the parts of an update on one thread of the CPU, in processor time and in turns: the draw of a
batch, updates of the critics alone, updates of critics and actors, and the matrix products of all
alone. It counts the operations, views left out, and the share of the products.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np  # noqa: E402
from learner import Products  # noqa: E402
from measuring import add_settings, emit, interleaved, make_run, settings  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from harl_mapush.algorithms.entries import ALGORITHMS  # noqa: E402
from harl_mapush.learning.off_policy.replay_buffer import RingReplay  # noqa: E402
from harl_mapush.learning.settings import NetworkCfg  # noqa: E402
from harl_mapush.process import keep_freed_memory  # noqa: E402
from mqe.vec_env import TeamSpec  # noqa: E402
from tests.harl_mapush.algorithms.test_off_policy import go, make  # noqa: E402
from tests.support import record_off_policy as upstream  # noqa: E402
from tests.support.harl_off_policy import build, load_ring  # noqa: E402
from tests.support.toy import ToyEnv  # noqa: E402

CALLS = 6  # updates of each part a round
BASE: dict[str, Any] = {
    "warmup": 640,
    "batch_size": 128,
    "update_ratio": 2 / 32,
    "gamma": 0.9,
    "polyak": 0.02,
    "learning_rate": 1e-3,
    "critic_learning_rate": 1e-3,
}
SWITCHES: dict[
    str, tuple[str, dict[str, Any], dict[str, Any]]
] = {  # algorithm, its settings, the network's
    "hasac": ("hasac", {}, {}),
    "hasac, 51 atoms": ("hasac", {"num_atoms": 51}, {}),
    "hasac, layer norm": ("hasac", {}, {"use_layer_norm": True}),
    "hasac, one step": ("hasac", {"n_step": 1}, {}),
    "hasac, returns not normalised": ("hasac", {"normalize_returns": False}, {}),
    "hasac, four updates a decision": ("hasac", {"update_ratio": 4 / 32}, {}),
    "masac": ("masac", {}, {}),
    "hatd3": ("hatd3", {}, {}),
    "hatd3, 51 atoms": ("hatd3", {"num_atoms": 51}, {}),
    "hatd3, one noise for all": ("hatd3", {"exploration_noise": (0.1, 0.1)}, {}),
}


def time_updates(arguments: argparse.Namespace) -> None:
    """Time updates in turns."""
    for algo, case in (("hasac", "hasac_2a"), ("hatd3", "hatd3_2a")):
        name, train, settings = upstream.CASES[case]
        model = upstream.MODEL | {"hidden_sizes": arguments.hidden_sizes}
        rows = 20_000
        own = settings | {"buffer_size": upstream.ENVS * rows, "batch_size": arguments.batch_size}
        config = {"train": upstream.TRAIN | train, "model": model, "algo": upstream.ALGO | own}
        theirs = upstream.make_runner(name, config)
        upstream.ROWS = rows
        upstream.fill(theirs.buffer, np.random.default_rng(0))
        names = ("share_obs", "next_share_obs", "rewards", "dones", "terms")
        buffer: dict[str, Any] = {key: upstream.plain(getattr(theirs.buffer, key)) for key in names}
        for key in ("obs", "next_obs", "actions", "valid_transitions"):
            buffer[key] = [upstream.plain(x) for x in getattr(theirs.buffer, key)]
        env = {
            "n_agents": 2,
            "N": upstream.ENVS,
            "obs_dim": upstream.OBS,
            "share_obs_dim": upstream.STATE,
        }
        record = {
            "meta": {"algo": name},
            "config": config,
            "env": env | {"act_dim": upstream.ACTION},
            "buffer": buffer | {"idx": theirs.buffer.idx},
        }
        compatible = build(record)
        ring = load_ring(compatible, record)
        spec = TeamSpec((upstream.OBS,) * 2, (upstream.ACTION,) * 2, upstream.STATE, "EP")
        network = NetworkCfg(tuple(arguments.hidden_sizes), activation="relu")
        entry = ALGORITHMS[name]
        plain = {"batch_size": arguments.batch_size, "n_step": own["n_step"]}
        categorical, scalar = (
            entry.cls(entry.cfg(**plain, num_atoms=k), network, spec) for k in (101, 0)
        )  # type: ignore
        index = torch.Generator().manual_seed(0)

        def learn(
            team: Any, ring: RingReplay = ring, index: torch.Generator = index
        ) -> Callable[[], object]:
            count = ring.shape.num_transitions
            return lambda: team.learn(
                ring.look_up(torch.randint(count, (arguments.batch_size,), generator=index))
            )

        parts: dict[str, Callable[[], object]] = {
            "upstream": theirs.train,
            "ours, compat=harl": learn(compatible),
            "ours, values are numbers": learn(scalar),
            "ours, 101 atoms": learn(categorical),
        }
        times = interleaved(torch.device("cpu"), parts, arguments.rounds, CALLS)
        medians = {part: statistics.median(found) for part, found in times.items()}
        ratios = {
            part: statistics.median(u / o for u, o in zip(times["upstream"], found, strict=True))
            for part, found in times.items()
        }
        emit(
            algo=algo,
            ms=medians,
            times_upstream=ratios,
            batch_size=arguments.batch_size,
            hidden_sizes=arguments.hidden_sizes,
            rounds=arguments.rounds,
            threads=torch.get_num_threads(),
        )


def learn_with_switches(arguments: argparse.Namespace) -> None:
    """Learn the toy with one setting changed at a time."""
    for label, (name, changed, network) in SWITCHES.items():
        if arguments.only and label not in arguments.only:
            continue
        for seed in range(arguments.seeds):
            env = ToyEnv(32, seed=seed)
            cfg = NetworkCfg((64, 64), activation="relu", **network)
            team, experience = make(name, env, cfg, **BASE | changed)
            team.generator.manual_seed(seed)
            start = time.perf_counter()
            rewards = [round(go(team, experience, env, 20)[0], 3) for _ in range(arguments.blocks)]
            used = {
                key: getattr(team.cfg, key)
                for key in ("num_atoms", "n_step", "normalize_returns", "update_ratio")
            }
            used |= {"use_layer_norm": team.network.use_layer_norm, "num_updates": team.num_updates}
            emit(
                switch=label,
                seed=seed,
                rewards=rewards,
                used=used,
                seconds=time.perf_counter() - start,
            )


class Operations(TorchDispatchMode):
    """Counts operations that compute something, while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += not operation.is_view
        return operation(*args, **(kwargs or {}))


def time_parts(arguments: argparse.Namespace) -> None:
    """Time the parts of an update."""
    keep_freed_memory()
    torch.set_num_threads(1)
    small = {"env": {"num_envs": 32}, "runner": {"collectors": 0, "num_steps": 8}}
    small |= {"sim": {"name": "mujoco", "device": "cpu"}}
    small |= {"algorithm": {"warmup": 2048, "buffer_size": 2048, "beside_collecting": False}}
    cfg = settings(arguments, **small)
    env, runner = make_run(cfg)
    runner.start()
    for _ in range(8):
        runner.collect()
    team: Any = runner.algorithm
    replay = runner.experience.replay  # type: ignore[attr-defined]
    (batch,) = team.draw(replay, 1)
    order = tuple(range(env.num_agents))
    team.learn(batch)
    parts: dict[str, Callable[[], object]] = {
        "draw": lambda: team.draw(replay, 1),
        "critics": lambda: team._learn((), *batch),
        "critics and actors": lambda: team._learn(order, *batch),
    }
    alone: dict[str, Callable[[], object]] = {}
    counts = {}
    flops = {}
    for name, part in parts.items():
        with Operations() as operations:
            part()
        counts[name] = operations.count
        with Products() as products:
            part()
        flops[name] = products.flops
        alone[f"products of {name}"] = products.run

    times: dict[str, list[float]] = {name: [] for name in parts | alone}
    for _ in range(arguments.rounds + 1):
        for name, part in (parts | alone).items():
            start = time.thread_time()
            for _ in range(CALLS):
                part()
            times[name].append((time.thread_time() - start) / CALLS * 1e3)
    ms = {name: statistics.median(found[1:]) for name, found in times.items()}

    def mean(of: dict[str, float], prefix: str = "") -> float:
        """Return the mean of an update, of which one in ``policy_delay`` has actors."""
        share = 1.0 / cfg.algorithm.policy_delay  # type: ignore[attr-defined]
        critics = of[f"{prefix}critics"]
        both = of[f"{prefix}critics and actors"]
        return (1.0 - share) * critics + share * both

    update_ms = ms["draw"] + mean(ms)
    products_ms = mean(ms, "products of ")
    emit(
        preset=arguments.preset,
        set=arguments.set,
        ms=ms,
        operations=counts,
        update_ms=update_ms,
        operations_an_update=counts["draw"] + mean(counts),
        products_share=products_ms / update_ms,
        gflop_per_cpu_s=mean(flops) / products_ms / 1e6,
    )
    env.close()


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("update", "switches", "parts"))
    add_settings(parser, "laptop_hasac")
    parser.add_argument("--batch_size", type=int, default=1000)
    parser.add_argument("--hidden_sizes", type=int, nargs="+", default=[256, 256])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=14, help="of 20 decisions")
    parser.add_argument("--only", nargs="*", default=[], help="switches by name")
    arguments = parser.parse_args()
    works = {"update": time_updates, "switches": learn_with_switches, "parts": time_parts}
    works[arguments.what](arguments)


if __name__ == "__main__":
    main()
