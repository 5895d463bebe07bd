"""Replay updates recorded from upstream HARL with this project's own algorithms, and compare the
results.

``python -m tests.support.harl_parity FILE [FILE ...]`` compares returns, advantages, factors,
weights, Adam moments and value normaliser in every stage. Exit code 0: all agree. 1: some differ.
2: a file is not a recording in this layout (the command still compares the others). On a GPU
(``--device cuda``) every stage is learned three times from one start. The command compares the
third time, a replay of captured graphs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.algorithms.happo import Happo
from harl_mapush.algorithms.on_policy import OnPolicy
from harl_mapush.learning.on_policy.minibatches import Shuffle
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.optimizer import FlatAdam, views
from mapush.extensions.harl import hatrpo, on_policy_formulas  # noqa: F401, registers
from mapush.extensions.harl.harl_settings import algorithm_cfg, network_cfg
from mqe.cuda_graphs import EAGER_CALLS
from mqe.vec_env import TeamSpec
from tests.support.harl_recording import FORMAT, NUM_STAGES, LayoutError, check_stage, read
from tests.support.rounding import FEW_STEPS

TOLERANCE = FEW_STEPS  # of weights near 1
# Exponentials of sums in float32: how many threads add up moves them by 1.2e-6 on CPUs, a GPU by
# 1.25e-6.
FACTOR_TOLERANCE = 2e-6
# Conjugate gradient amplifies float32 rounding.
HATRPO_TOLERANCES = {
    "actor weights": 2e-5,
    "factors": 2e-4,
}
# A gradient through several decisions sums products of all of them. In which order a CPU adds them
# up moves Adam's moments, of size 1.3, by 6e-6 (Intel Xeon, AVX2).
RECURRENT_TOLERANCES = {"actor Adam": 2e-5, "critic Adam": 2e-5}
_FAILURES = (
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    ValueError,
    RuntimeError,
    ArithmeticError,
)
JUDGED = (
    *("returns", "advantages", "factors"),  # relative to their size where it exceeds 1
    *("actor weights", "actor Adam", "critic weights", "critic Adam", "value normaliser"),
)


class Difference(NamedTuple):
    """The largest difference of one quantity in one stage of one file. NaN counts as infinite."""

    file: str
    stage: int
    quantity: str
    size: float
    tolerance: float  # infinite for what is shown but not judged


def replay(
    path: str | Path, device: torch.device | str = "cpu", num_passes: int | None = None
) -> list[Difference]:
    """Replay both stages of a recording on ``device``. Raise LayoutError for other files.

    Every stage is learned ``num_passes`` times from one start, and the last pass is compared. None:
    as many passes as the device needs to replay captured graphs.
    """
    device = torch.device(device)
    num_passes = num_passes or (1 if device.type == "cpu" else EAGER_CALLS + 1)
    record = read(path)
    differences = []
    for index in range(NUM_STAGES):
        try:
            learner = prepare(record, index, device)
            sizes = [learn_and_compare(*learner, record, index) for _ in range(num_passes)][-1]
        except LayoutError as error:
            raise LayoutError(f"{path}: stage {index}: {error}") from error
        except _FAILURES as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise LayoutError(f"{path}: stage {index} cannot be replayed ({reason})") from error
        for quantity, size in sizes.items():
            tolerance = _tolerance(quantity, record["meta"]["algo"], _num_unrolled(record))
            differences.append(Difference(Path(path).name, index, quantity, size, tolerance))
    return differences


def build_algorithm(record: Mapping[str, Any], device: torch.device) -> OnPolicy:
    """Build the algorithm from a recording's configuration."""
    sections = record["config"]
    env = record["env"]
    harl = {**sections["train"], **sections["model"], **sections["algo"]}
    agents = env["n_agents"]
    spec = TeamSpec(
        (env["obs_dim"],) * agents,
        (env["act_dim"],) * agents,
        env["share_obs_dim"],
        env["state_type"],
    )
    name = record["meta"]["algo"]
    algorithm = ALGORITHMS[name].cls(algorithm_cfg(name, harl), network_cfg(harl), spec, device)
    assert isinstance(algorithm, OnPolicy)
    return algorithm


def prepare(
    record: Mapping[str, Any], index: int, device: torch.device
) -> tuple[OnPolicy, Storage]:
    """Build the algorithm and the storage for stage ``index``."""
    env = record["env"]
    algorithm = build_algorithm(record, device)
    check_stage(record, index, algorithm)
    return algorithm, algorithm.make_experience(env["T"], env["N"])


def learn_and_compare(
    algorithm: OnPolicy, storage: Storage, record: Mapping[str, Any], index: int
) -> dict[str, float]:
    """Run the algorithm's own update from a stage's start. Return the largest difference in every
    quantity.
    """
    stage = record["stages"][index]
    env = record["env"]
    computed = stage["computed"]
    load_learner(algorithm, stage["pre"])
    load_rollout(storage, stage)
    order = list(computed["agent_order"])
    permutations = with_idle_agents(stage["randperm"], algorithm, storage, order)
    algorithm.shuffle = algorithm.value.shuffle = RecordedShuffle(
        permutations, order, algorithm.device
    )
    num_iterations = record["config"]["train"]["num_env_steps"] // env["T"] // env["N"]
    sizes = {"learning rate": _check_learning_rate(algorithm, stage, index / num_iterations)}
    algorithm.graphs("values", lambda: algorithm.value.compute_values(storage), over=storage)
    sizes["next value"] = _apart(storage.values[-1], computed["next_value"])
    load_rollout(storage, stage)
    algorithm.graphs("returns", lambda: algorithm.value.compute_returns(storage), over=storage)
    sizes["returns"] = _relatively_apart(storage.returns, computed["returns"][:-1])
    advantages = zip(algorithm.advantages(storage), computed["advantages_norm"], strict=True)
    compared = [  # of an agent that was never alive upstream records the mean of nothing
        (ours, theirs)
        for agent, (ours, theirs) in enumerate(advantages)
        if bool(storage.weights(agent).any()) or not bool(theirs.isnan().all())
    ]
    sizes["advantages"] = max(
        (_relatively_apart(ours, theirs) for ours, theirs in compared), default=0.0
    )
    algorithm.learn(storage)
    if computed["factor"] is not None:
        factors = zip(storage.factor, computed["factor"], strict=True)
        sizes["factors"] = max(_relatively_apart(ours, theirs) for ours, theirs in factors)
    return sizes | compare_learner(algorithm, stage["post"])


class RecordedShuffle(Shuffle):
    """Yields upstream's permutations in upstream's order, even if order affects only rounding."""

    def __init__(
        self, permutations: list[Tensor], agent_order: list[int], device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(torch.Generator(), torch.Generator())
        # A recording may not wait for the host.
        self.permutations = [order.to(device) for order in permutations]
        self.agent_order = agent_order

    def rows(self, num_rows: int, num_minibatches: int) -> Tensor | None:
        order = self._next()
        if len(order) == len(self.agent_order) != num_rows:
            # Before it came an order of agents that upstream draws and does not use.
            order = self._next()
        if len(order) != num_rows:
            raise LayoutError(
                f"a permutation of {len(order)} rows was recorded where {num_rows} are needed"
            )
        return order

    def agents(self, num_agents: int) -> list[int]:
        if sorted(self._next().tolist()) != sorted(self.agent_order):
            raise LayoutError(f"no order of {num_agents} agents was recorded where one is needed")
        return list(self.agent_order)

    def _next(self) -> Tensor:
        if not self.permutations:
            raise LayoutError("fewer permutations were recorded than the update needs")
        return self.permutations.pop(0)


def with_idle_agents(
    permutations: list[Tensor], algorithm: OnPolicy, storage: Storage, agent_order: list[int]
) -> list[Tensor]:
    """Return permutations, with substitutes for agents never alive.

    Upstream draws none for such an agent. Here an update draws for every agent, without effect.
    """
    is_sequential = isinstance(algorithm, Happo)
    if algorithm.cfg.share_param or (is_sequential and not algorithm.is_capturable):
        return permutations
    draws_order = is_sequential and not algorithm.cfg.fixed_order
    filled = list(permutations)
    position = 1 if draws_order else 0
    agent_order = agent_order if is_sequential else sorted(agent_order)
    length = algorithm.value.chunk_length(storage) or 1
    num_rows = storage.shape.num_steps * storage.shape.num_envs // length
    num_epochs = algorithm.cfg.num_epochs
    for agent in agent_order:
        if not bool(storage.weights(agent).any()):
            filled[position:position] = [torch.arange(num_rows)] * num_epochs
        position += num_epochs
    return filled


def load_rollout(storage: Storage, stage: Mapping[str, Any]) -> None:
    """Fill the storage with a recorded rollout."""
    buffer = stage["buffer"]
    computed = stage["computed"]

    def per_env(x: Tensor) -> Tensor:
        """(T+1, N, [A,] 1) to (T+1, N): environments end for all agents at once."""
        flat = x.reshape(*x.shape[:2], -1)
        if not torch.equal(flat, flat[..., :1].expand_as(flat)):
            raise LayoutError("masks differ between agents of one environment")
        return flat[..., 0]

    storage.obs.copy_(torch.stack(buffer["obs"])[:, :-1])
    storage.actions.copy_(torch.stack(buffer["actions"]))
    storage.log_probs.copy_(torch.stack(buffer["action_log_probs"]))
    storage.active.copy_(torch.stack(buffer["active_masks"]).squeeze(-1))
    storage.state.copy_(buffer["share_obs"])
    storage.rewards.copy_(buffer["rewards"].flatten(2))
    storage.masks.copy_(per_env(buffer["critic_masks"]))
    storage.truncated.copy_(1.0 - per_env(buffer["bad_masks"])[1:])
    storage.values.copy_(buffer["value_preds"].flatten(2))
    storage.values[-1] = computed["next_value"].view_as(storage.values[-1])
    if storage.actor_hidden is not None and storage.critic_hidden is not None:
        storage.actor_hidden.copy_(torch.stack(buffer["rnn_states"]))
        storage.critic_hidden.copy_(buffer["rnn_states_critic"].view_as(storage.critic_hidden))


def load_learner(algorithm: OnPolicy, state: Mapping[str, Any]) -> None:
    """Put the algorithm into a recorded state: weights, Adam, value normaliser."""
    for actor, optimizer, saved, adam in zip(
        algorithm.unique_actors,
        algorithm.optimizers,
        state["actor"],
        state["actor_optim"],
        strict=True,
    ):
        _load_network(actor, optimizer, saved, adam)
    _load_network(
        algorithm.critic, algorithm.value.optimizer, state["critic"], state["critic_optim"]
    )
    if state["value_norm"] is not None:
        algorithm.normalizer.load_state_dict(state["value_norm"])


def compare_learner(algorithm: OnPolicy, state: Mapping[str, Any]) -> dict[str, float]:
    """Return the largest difference of weights, Adam moments and value normaliser from a recorded
    state.
    """
    critic = algorithm.critic
    adam = algorithm.value.optimizer
    actor_pairs = list(zip(algorithm.unique_actors, state["actor"], strict=True))
    optimizer_pairs = list(zip(algorithm.optimizers, state["actor_optim"], strict=True))
    sizes = {
        "actor weights": max(
            _distance(dict(actor.state_dict()), saved) for actor, saved in actor_pairs
        ),
        "critic weights": _distance(dict(critic.state_dict()), state["critic"]),
        "critic Adam": _adam_distance(adam, state["critic_optim"]),
    }
    # Never HATRPO's.
    if any(int(optimizer.step_count) or saved["step"] for optimizer, saved in optimizer_pairs):
        sizes["actor Adam"] = max(
            _adam_distance(optimizer, saved) for optimizer, saved in optimizer_pairs
        )
    if state["value_norm"] is not None:
        sizes["value normaliser"] = _distance(
            dict(algorithm.normalizer.state_dict()), state["value_norm"]
        )
    return sizes


def main(argv: list[str] | None = None) -> int:
    """Compare every named file, print the largest difference of each quantity and return the exit
    code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.harl_parity", description=__doc__
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help=f"recordings of layout {FORMAT}, .pt or .pt.xz"
    )
    parser.add_argument(
        "--device", default="cpu", help="where ours learns: cpu, cuda or cuda:K (default: cpu)"
    )
    arguments = parser.parse_args(argv)
    files = arguments.files
    device = _device(parser, arguments.device)
    torch.set_num_threads(1)
    judged: list[Difference] = []
    num_refused = 0
    for path in files:
        try:
            differences = replay(path, device)
        except LayoutError as error:
            sys.stderr.write(f"{error}\n")
            num_refused += 1
            continue
        sys.stdout.write(_table(differences))
        judged += [difference for difference in differences if difference.quantity in JUDGED]
    agreed = all(difference.size <= difference.tolerance for difference in judged)
    if judged:
        sys.stdout.write(_verdict(judged, agreed, len(files) - num_refused, num_refused))
    return 2 if num_refused else 0 if agreed else 1


def _device(parser: argparse.ArgumentParser, name: str) -> torch.device:
    """Return the requested device. Exit with 2 if it is missing."""
    try:
        return torch.zeros((), device=name).device
    except (RuntimeError, AssertionError):
        parser.error(f"--device {name}: there is none here; say cpu, cuda or cuda:K")


def _check_learning_rate(algorithm: OnPolicy, stage: Mapping[str, Any], progress: float) -> float:
    """Compare the schedule's rate with the recorded one, and continue with the recorded one."""
    algorithm.set_progress(progress)
    optimizers = [*algorithm.optimizers, algorithm.value.optimizer]
    recorded = [
        saved["lr"] for saved in (*stage["pre"]["actor_optim"], stage["pre"]["critic_optim"])
    ]
    size = max(
        abs(float(o.learning_rate) - rate) for o, rate in zip(optimizers, recorded, strict=True)
    )
    for optimizer, rate in zip(optimizers, recorded, strict=True):
        optimizer.learning_rate.fill_(rate)
    return size


def _load_network(
    network: nn.Module, optimizer: FlatAdam, saved: Mapping[str, Tensor], adam: Mapping[str, Any]
) -> None:
    network.load_state_dict(saved)
    optimizer.learning_rate.fill_(adam["lr"])
    optimizer.step_count.fill_(adam["step"])
    for flat, moments in (
        (optimizer.exp_avg, adam["exp_avg"]),
        (optimizer.exp_avg_sq, adam["exp_avg_sq"]),
    ):
        flat.zero_()
        if moments:
            for view, name in zip(views(flat, optimizer.parameters), optimizer.names, strict=True):
                view.copy_(moments[name])


def _adam_distance(optimizer: FlatAdam, saved: Mapping[str, Any]) -> float:
    if int(optimizer.step_count) != saved["step"]:
        return float("inf")
    if saved["step"] == 0:
        return 0.0
    first = dict(zip(optimizer.names, views(optimizer.exp_avg, optimizer.parameters), strict=True))
    second = dict(
        zip(optimizer.names, views(optimizer.exp_avg_sq, optimizer.parameters), strict=True)
    )
    return max(_distance(first, saved["exp_avg"]), _distance(second, saved["exp_avg_sq"]))


def _distance(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    if set(ours) != set(theirs):
        raise LayoutError(f"tensors differ: {', '.join(sorted(set(ours) ^ set(theirs)))}")
    return max(_apart(ours[name], theirs[name]) for name in ours)


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return _largest(ours.cpu() - theirs.view_as(ours))


def _relatively_apart(ours: Tensor, theirs: Tensor) -> float:
    theirs = theirs.view_as(ours)
    return _largest((ours.cpu() - theirs) / theirs.abs().clamp(min=1.0))


def _largest(difference: Tensor) -> float:
    return float(torch.nan_to_num(difference.abs(), nan=float("inf"), posinf=float("inf")).max())


def _tolerance(quantity: str, algo: str, num_unrolled: int) -> float:
    if quantity not in JUDGED:
        return float("inf")
    if algo == "hatrpo" and quantity in HATRPO_TOLERANCES:
        return HATRPO_TOLERANCES[quantity] * num_unrolled
    if num_unrolled > 1 and quantity in RECURRENT_TOLERANCES:
        return RECURRENT_TOLERANCES[quantity]
    return (FACTOR_TOLERANCE if quantity == "factors" else TOLERANCE) * num_unrolled


def _num_unrolled(record: Mapping[str, Any]) -> int:
    """Return the number of decisions one after another in a gradient: each rounds once more."""
    harl = {**record["config"]["model"], **record["config"]["algo"]}
    return harl["data_chunk_length"] if harl["use_recurrent_policy"] else 1


def _table(differences: list[Difference]) -> str:
    largest: dict[str, float] = {}
    for difference in differences:
        largest[difference.quantity] = max(largest.get(difference.quantity, 0.0), difference.size)
    cells = "  ".join(f"{quantity} {size:.1e}" for quantity, size in largest.items())
    return f"{differences[0].file}: {cells}\n"


def _verdict(judged: list[Difference], agreed: bool, num_files: int, num_refused: int) -> str:
    worst = max(judged, key=lambda difference: difference.size / difference.tolerance)
    others = f"; {num_refused} of another layout not compared" if num_refused else ""
    return (
        f"worst {worst.size:.2e} ({worst.quantity}, stage {worst.stage} of {worst.file}; tolerance "
        f"{worst.tolerance:.0e}): {num_files} file{'s' if num_files > 1 else ''} "
        f"{'agree' if agreed else 'DO NOT agree'} with upstream{others}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
