"""Time one training iteration without a simulator, beside upstream HARL's on an equal workload.

``python benchmarks/learner.py [--harl PATH] [--num_envs 500 --num_steps 200 --iterations 6]``
prints one JSON line with medians: seconds per iteration, and in it collecting, returns (with
values), actors and critic, the system's fraction of the processor time (``system_s``) and page
faults. glibc keeps freed memory, for both learners, as in a training. ``--allocator default``
disables this.

With ``--harl`` a checkout of upstream trains alongside, on this machine with equal threads,
iteration by iteration in turn. A second line gives its times. A third gives the update's speed-up
and the weights' difference after an equal first update: with the rows in upstream's order, as
timed, and upstream's from its own with rows in another order. On a CPU ``--products`` adds a line
about the bound: the update's matrix products are timed alone after every iteration, on equal
threads. ``share`` is their processor time divided by the update's. With one thread ``operations``
has the time fractions of single operations inside an update.
"""

from __future__ import annotations

import mqe as mqe  # before torch: it says how OpenMP's threads wait

# isort: split

import argparse
import json
import resource
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from measuring import say, seconds
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.algorithms.on_policy import OnPolicy
from harl_mapush.config import RunnerCfg
from harl_mapush.learning.on_policy import minibatches
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.process import keep_freed_memory, seed_everything
from harl_mapush.runner import Runner
from mqe.vec_env import TeamSpec, TimeStep

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support import harl_parity  # noqa: E402

OBS_SIZE = 8
STATE_SIZE = 17
ACTION_SIZE = 3
HARL_DEFAULTS = {  # upstream's HAPPO, in our words
    "compat": "harl",
    "num_minibatches": 1,
    "learning_rate": 5e-4,
    "critic_learning_rate": 5e-4,
    "max_grad_norm": 10.0,
    "use_clipped_value_loss": True,
}
HARL_NETWORK = {
    "hidden_sizes": (128, 128),
    "activation": "relu",
    "use_feature_normalization": True,
    "std_y_coef": 0.5,
}


class SyntheticEnv:
    """Random tensors drawn beforehand, in the environment's contract."""

    def __init__(self, num_envs: int, num_agents: int, device: torch.device) -> None:
        self.num_envs = num_envs
        self.num_agents = num_agents
        self.device = device
        obs_sizes = (OBS_SIZE,) * num_agents
        self.spec = TeamSpec(obs_sizes, (ACTION_SIZE,) * num_agents, STATE_SIZE, "EP")
        self.decision_period = 1
        self.step_dt = 0.02
        draw = torch.Generator(device).manual_seed(0)
        self.obs = torch.randn(16, num_envs, num_agents, OBS_SIZE, generator=draw, device=device)
        self.state = torch.randn(16, num_envs, STATE_SIZE, generator=draw, device=device)
        self.reward = torch.randn(16, num_envs, 1, generator=draw, device=device).expand(
            -1, -1, num_agents
        )
        self.done = torch.rand(16, num_envs, generator=draw, device=device) < 0.01
        self.valid = torch.ones(num_envs, dtype=torch.bool, device=device)
        self.t = 0

    def reset(self, *, staggered: bool = False) -> tuple[Tensor, Tensor]:
        self.t = 0
        return self.obs[0], self.state[0]

    def step(self, actions: Tensor) -> TimeStep:
        self.t = t = (self.t + 1) % 16
        ended = self.done[t].unsqueeze(1).expand(-1, self.num_agents)
        obs = self.obs[t]
        state = self.state[t]
        return TimeStep(obs, state, self.reward[t], ended, ~self.valid, self.valid, obs, state, {})

    def statistics(self) -> dict[str, float]:
        return {}

    def reset_statistics(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Tensor, Tensor]:
        return self.reset()

    def grow_buffers(self) -> str | None:
        return None

    def close(self) -> None: ...


def main(argv: list[str] | None = None) -> int:
    """Print the JSON lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--harl", type=_checkout, metavar="PATH", help="a checkout of upstream HARL to time beside"
    )
    parser.add_argument("--algo", default="happo", choices=list(ALGORITHMS))
    parser.add_argument("--num_envs", type=int, default=500)
    parser.add_argument("--num_steps", type=int, default=200)
    parser.add_argument("--num_agents", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=6, help="the first one is not counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--allocator", default="kept", choices=("kept", "default"))
    parser.add_argument("--products", action="store_true", help="time the matrix products alone")
    args = parser.parse_args(argv)
    if args.allocator == "kept" and not keep_freed_memory():
        say("freed memory is not kept: there is no glibc, or MALLOC_... or GLIBC_TUNABLES is set")
    torch.set_num_threads(args.threads)
    seed_everything(1)
    ours = _ours(args)
    upstream = None
    if args.harl:
        upstream = _upstream(args)
    products = _products_of(ours) if args.products else None
    laps: dict[str, list[dict[str, float]]] = {"mapush": [], "harl": [], "products": []}
    for _ in range(args.iterations):
        laps["mapush"].append(_time_ours(ours))
        if products is not None:
            laps["products"].append(_laps(torch.device("cpu"), {"products_s": products.run}))
        if upstream is not None:
            laps["harl"].append(_time_upstream(upstream))
    _write(_summary("mapush", laps["mapush"], args))
    if upstream is not None:
        _write(_summary("harl", laps["harl"], args))
        _write(_comparison(laps, args))
    if products is not None:
        _write(_bound(products, laps))
    return 0


def _checkout(path: str) -> Path:
    if not (Path(path) / "harl" / "runners").is_dir():
        raise argparse.ArgumentTypeError(
            f"{path} is not a checkout of upstream HARL (no harl/runners in it)"
        )
    return Path(path)


def _upstream(args: argparse.Namespace) -> Any:
    import upstream_harl

    sizes = (OBS_SIZE, STATE_SIZE, ACTION_SIZE)
    return upstream_harl.build_runner(
        args.harl, args.algo, args.num_envs, args.num_steps, args.num_agents, sizes
    )


def _ours(args: argparse.Namespace) -> Runner:
    env = SyntheticEnv(args.num_envs, args.num_agents, torch.device(args.device))
    algorithm = _algorithm(args, args.device)
    steps = args.num_envs * args.num_steps * args.iterations
    runner = Runner(env, algorithm, RunnerCfg(num_steps=args.num_steps, num_env_steps=steps))
    runner.start()
    return runner


def _algorithm(args: argparse.Namespace, device: str) -> OnPolicy:
    entry = ALGORITHMS[args.algo]
    spec = TeamSpec(
        (OBS_SIZE,) * args.num_agents, (ACTION_SIZE,) * args.num_agents, STATE_SIZE, "EP"
    )
    return entry.cls(entry.cfg(**HARL_DEFAULTS), NetworkCfg(**HARL_NETWORK), spec, device)


def _time_ours(runner: Runner) -> dict[str, float]:
    algorithm = runner.algorithm
    storage = runner.experience

    return _laps(
        runner.env.device,
        {
            "collect_s": runner.collect,
            "returns_s": lambda: algorithm.compute_returns(storage),
            "actors_s": lambda: algorithm.update_actors(storage),
            "critic_s": lambda: algorithm.update_critic(storage),
        },
    )


def _time_upstream(runner: Any) -> dict[str, float]:
    import upstream_harl

    critic_s = 0.0
    train_critic = runner.critic.train

    def timed(*args: Any) -> Any:
        nonlocal critic_s
        start = time.perf_counter()
        outcome = train_critic(*args)
        critic_s = time.perf_counter() - start
        return outcome

    runner.critic.train = timed

    def collect() -> None:
        upstream_harl.collect(runner)

    def train() -> None:
        upstream_harl.train(runner)

    laps = _laps(
        torch.device("cpu"), {"collect_s": collect, "returns_s": runner.compute, "actors_s": train}
    )
    runner.critic.train = train_critic
    runner.after_update()
    return laps | {"actors_s": laps["actors_s"] - critic_s, "critic_s": critic_s}


def _laps(device: torch.device, parts: dict[str, Callable[[], Any]]) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_SELF)
    laps = {}
    update_cpu_s = 0.0
    for name, part in parts.items():
        start_s = time.process_time()
        laps[name] = seconds(device, part)
        if name != "collect_s":
            update_cpu_s += time.process_time() - start_s
    after = resource.getrusage(resource.RUSAGE_SELF)
    wall = sum(laps.values())
    system_s = after.ru_stime - before.ru_stime
    cpus_used = (after.ru_utime - before.ru_utime + system_s) / wall
    page_faults = after.ru_minflt - before.ru_minflt
    return (
        {"iteration_s": wall}
        | laps
        | {"update_cpu_s": update_cpu_s, "cpus_used": cpus_used}
        | {"system_s": system_s, "page_faults": page_faults}
    )


class Products(TorchDispatchMode):
    """Records matrix products while it is entered, and repeats them alone."""

    def __init__(self) -> None:
        super().__init__()
        # Calls of an operation by its tensors' sizes and strides, and the tensors.
        self._calls: Counter[tuple[Any, ...]] = Counter()
        self._inputs: dict[tuple[Any, ...], list[Tensor]] = {}
        self.flops = 0
        self.seconds: dict[str, float] = defaultdict(float)  # of this thread, by operation

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = operation.overloadpacket.__name__
        if operation.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            name = "products"
            rows, columns = args[-2:]
            self.flops += 2 * rows.shape[0] * rows.shape[1] * columns.shape[1]
            key = (operation, *((x.shape, x.stride()) for x in args))
            self._calls[key] += 1
            if key not in self._inputs:
                self._inputs[key] = [_like(x) for x in args]
        start_s = time.thread_time()
        outcome = operation(*args, **(kwargs or {}))
        self.seconds[name] += time.thread_time() - start_s
        return outcome

    @property
    def num_calls(self) -> int:
        """Number of products."""
        return sum(self._calls.values())

    @torch.no_grad()
    def run(self) -> None:
        """Compute all products."""
        for key, count in self._calls.items():
            inputs = self._inputs[key]
            for _ in range(count):
                key[0](*inputs)


def _like(x: Tensor) -> Tensor:
    """Return random numbers with the size and the strides of ``x``."""
    return torch.empty_strided(x.shape, x.stride()).normal_()


def _products_of(runner: Runner) -> Products:
    """Return the products in an update, taken after two others."""
    for _ in range(2):
        runner.collect()
        runner.update()
    runner.collect()
    products = Products()
    with products:
        runner.update()
    return products


def _bound(products: Products, laps: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Compare processor times for updates and for their products alone, pair by pair."""
    pairs = list(zip(laps["products"], laps["mapush"], strict=True))[1:]
    cpu_s = statistics.median(upstream["update_cpu_s"] for upstream, _ in pairs)
    shares = [upstream["update_cpu_s"] / ours["update_cpu_s"] for upstream, ours in pairs]
    all_s = sum(products.seconds.values())
    longest = sorted(products.seconds.items(), key=lambda part: -part[1])[:6]
    return {
        "products": products.num_calls,
        "gflop": round(products.flops / 1e9, 2),
        "products_cpu_s": round(cpu_s, 4),
        "gflop_per_cpu_s": round(products.flops / 1e9 / cpu_s, 1),
        "share": round(statistics.median(shares), 3),
        "shares": [round(share, 3) for share in sorted(shares)],
        "operations": {name: round(part_s / all_s, 3) for name, part_s in longest},
    }


def _summary(
    learner: str, laps: list[dict[str, float]], args: argparse.Namespace
) -> dict[str, Any]:
    counted = laps[1:] or laps
    medians = {
        name: round(statistics.median(lap[name] for lap in counted), 4) for name in counted[0]
    }
    workload = {
        name: getattr(args, name)
        for name in ("algo", "num_envs", "num_steps", "num_agents", "threads")
    }
    workload["allocator"] = args.allocator
    return (
        {"learner": learner}
        | medians
        | workload
        | {"device": args.device if learner == "mapush" else "cpu"}
    )


def _comparison(
    laps: dict[str, list[dict[str, float]]], args: argparse.Namespace
) -> dict[str, Any]:
    def update_s(lap: dict[str, float]) -> float:
        return lap["returns_s"] + lap["actors_s"] + lap["critic_s"]

    medians = {
        name: statistics.median(map(update_s, rows[1:] or rows))
        for name, rows in laps.items()
        if rows
    }
    return {
        "update_s": round(medians["mapush"], 4),
        "harl_update_s": round(medians["harl"], 4),
        "update_speedup": round(medians["harl"] / medians["mapush"], 2),
    } | _weights_apart(args)


def _weights_apart(args: argparse.Namespace) -> dict[str, float]:
    """Let both learn from upstream's first rollout, from the same weights and in the same agent
    order.

    First ours takes the rows in upstream's order and in one pass, then as it does when it is timed:
    unshuffled and in tiles that fit a cache. The noise floor is upstream against itself with its
    rows in their own order.
    """
    import upstream_harl

    runners = []
    for is_shuffled in (True, False):
        runner = _upstream(args)
        torch.manual_seed(9)
        upstream_harl.collect(runner)
        runner.compute()
        begin = upstream_harl.snapshot(runner)
        next_value = torch.from_numpy(runner.critic_buffer.value_preds[-1].copy())
        stage = {"buffer": upstream_harl.rollout(runner), "computed": {"next_value": next_value}}
        torch.manual_seed(5)
        drawn = upstream_harl.train(runner, is_shuffled)
        runners.append((begin, stage, drawn, upstream_harl.snapshot(runner)))
    (begin, stage, drawn, outcome), (*_, unshuffled) = runners
    agent_order = list(range(args.num_agents)) if args.algo == "mappo" else drawn[0].tolist()
    floor = _algorithm(args, "cpu")
    harl_parity.load_learner(floor, unshuffled)
    apart = {"harl_noise_floor": _apart(floor, outcome)}
    for name, is_in_its_order in (
        ("weights_max_difference", True),
        ("weights_max_difference_as_timed", False),
    ):
        algorithm = _algorithm(args, "cpu")
        harl_parity.load_learner(algorithm, begin)
        storage = algorithm.make_experience(args.num_steps, args.num_envs)
        harl_parity.load_rollout(storage, stage)
        algorithm.value.compute_returns(storage)
        algorithm.shuffle.agents = lambda num_agents: agent_order
        if is_in_its_order:
            algorithm.shuffle = algorithm.value.shuffle = harl_parity.RecordedShuffle(
                drawn, agent_order
            )
        with _tiles_of(
            args.num_steps * args.num_envs * args.num_agents if is_in_its_order else None
        ):
            algorithm.learn(storage)
        apart[name] = _apart(algorithm, outcome)
    return apart


def _apart(algorithm: OnPolicy, outcome: dict[str, Any]) -> float:
    apart = harl_parity.compare_learner(algorithm, outcome)
    return max(apart["actor weights"], apart["critic weights"])


@contextmanager
def _tiles_of(num_rows: int | None) -> Iterator[None]:
    """Let passes over a minibatch have ``num_rows`` rows instead of as many as a cache holds."""
    usual = minibatches.CPU_TILE_ROWS
    minibatches.CPU_TILE_ROWS = usual if num_rows is None else num_rows
    try:
        yield
    finally:
        minibatches.CPU_TILE_ROWS = usual


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
