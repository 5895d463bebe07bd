"""Upstream HARL's on-policy runner on synthetic data, from an unmodified checkout, without its
environments.

The runner has only the parts for an update: actors, critic, buffers, value normaliser. Stand-ins
replace absent modules for upstream's environments and logs.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
import yaml
from torch import Tensor

_VALUE_NORM = ("running_mean", "running_mean_sq", "debiasing_term")


class Box(NamedTuple):
    """A continuous space as upstream reads it: by class name and shape."""

    shape: tuple[int, ...]


class SyntheticArrays:
    """An environment in upstream's contract, with random numbers drawn beforehand."""

    def __init__(
        self, num_envs: int, sizes: tuple[int, int, int], num_agents: int, seed: int
    ) -> None:
        draw = numpy.random.default_rng(seed)
        obs_size, state_size, _ = sizes
        self.n_agents = num_agents
        self.obs = draw.standard_normal((16, num_envs, num_agents, obs_size), dtype=numpy.float32)
        state = draw.standard_normal((16, num_envs, 1, state_size), dtype=numpy.float32)
        self.state = numpy.broadcast_to(state, (16, num_envs, num_agents, state_size))
        reward = draw.standard_normal((16, num_envs, 1, 1), dtype=numpy.float32)
        self.reward = numpy.broadcast_to(reward, (16, num_envs, num_agents, 1))
        self.done = numpy.broadcast_to(
            draw.random((16, num_envs, 1)) < 0.01, (16, num_envs, num_agents)
        )
        self.available = numpy.array([None] * num_envs)
        self.infos: list[list[dict[str, Any]]] = [
            [{} for _ in range(num_agents)] for _ in range(num_envs)
        ]
        self.t = 0

    def reset(self) -> tuple[Any, ...]:
        return self.obs[0], self.state[0], self.available

    def step(self, actions: Any) -> tuple[Any, ...]:
        self.t = (self.t + 1) % 16
        t = self.t
        return self.obs[t], self.state[t], self.reward[t], self.done[t], self.infos, self.available


def build_runner(
    path: Path,
    algo: str,
    num_envs: int,
    num_steps: int,
    num_agents: int,
    sizes: tuple[int, int, int],
    seed: int = 1,
) -> Any:
    """Build upstream's runner for ``sizes`` (obs, state, action) with its default settings, EP
    states.
    """
    _import_checkout(path)
    settings = _read_settings(path / "harl" / "configs" / "algos_cfgs" / f"{algo}.yaml")
    settings["train"].update(
        n_rollout_threads=num_envs,
        episode_length=num_steps,
        num_env_steps=10 * num_envs * num_steps,
    )
    torch.manual_seed(seed)
    kind = "ma" if algo == "mappo" else "ha"
    module = importlib.import_module(f"harl.runners.on_policy_{kind}_runner")
    cls = getattr(module, f"OnPolicy{kind.upper()}Runner")
    base = importlib.import_module("harl.runners.on_policy_base_runner")
    runner = cls.__new__(cls)
    model = settings["model"]
    algorithm = settings["algo"]
    obs_space, state_space, action_space = (Box((size,)) for size in sizes)
    runner.algo_args = settings
    runner.state_type = "EP"
    runner.num_agents = num_agents
    runner.recurrent_n = model["recurrent_n"]
    runner.rnn_hidden_size = model["hidden_sizes"][-1]
    runner.action_aggregation = algorithm.get("action_aggregation")
    runner.device = torch.device("cpu")
    runner.share_param = algorithm["share_param"]
    runner.fixed_order = algorithm["fixed_order"]
    runner.envs = SyntheticArrays(num_envs, sizes, num_agents, seed)
    make_actor = base.ALGO_REGISTRY[algo]
    count = 1 if runner.share_param else num_agents
    actors = [
        make_actor({**model, **algorithm}, obs_space, action_space, device=runner.device)
        for _ in range(count)
    ]
    runner.actor = actors * (num_agents // count)
    buffers = {**settings["train"], **model}
    runner.actor_buffer = [
        base.OnPolicyActorBuffer(buffers, obs_space, action_space) for _ in range(num_agents)
    ]
    runner.critic = base.VCritic({**model, **algorithm}, state_space, device=runner.device)
    runner.critic_buffer = base.OnPolicyCriticBufferEP({**buffers, **algorithm}, state_space)
    runner.value_normalizer = base.ValueNorm(1, device=runner.device)
    runner.warmup()
    return runner


def collect(runner: Any) -> None:
    """Fill upstream's buffers with one rollout."""
    runner.prep_rollout()
    for step in range(runner.algo_args["train"]["episode_length"]):
        values, actions, log_probs, rnn_states, rnn_states_critic = runner.collect(step)
        outcome = runner.envs.step(actions)
        runner.insert((*outcome, values, actions, log_probs, rnn_states, rnn_states_critic))


def train(runner: Any, is_shuffled: bool = True) -> list[Tensor]:
    """Update upstream's networks and return the random draws. Without shuffling, training rows stay
    in their own order.
    """
    runner.prep_training()
    draw = torch.randperm
    drawn: list[Tensor] = []

    def draw_and_keep(n: int) -> Tensor:
        drawn.append(draw(n) if is_shuffled or n == runner.num_agents else torch.arange(n))
        return drawn[-1]

    torch.randperm = draw_and_keep  # type: ignore[assignment]
    try:
        runner.train()
    finally:
        torch.randperm = draw
    return drawn


def snapshot(runner: Any) -> dict[str, Any]:
    """Copy weights, Adam and value normaliser, laid out as in a parity recording."""
    actors = runner.actor[:1] if runner.share_param else runner.actor
    norm = runner.value_normalizer
    return {
        "actor": [_copy(actor.actor.state_dict()) for actor in actors],
        "critic": _copy(runner.critic.critic.state_dict()),
        "value_norm": _copy(
            {
                name: getattr(norm, name)
                for name in ("running_mean", "running_mean_sq", "debiasing_term")
            }
        ),
        "actor_optim": [_adam(actor.actor_optimizer, actor.actor) for actor in actors],
        "critic_optim": _adam(runner.critic.critic_optimizer, runner.critic.critic),
    }


def rollout(runner: Any) -> dict[str, Any]:
    """Copy the buffers, laid out as in a parity recording."""
    buffers = runner.actor_buffer
    critic = runner.critic_buffer
    agent_arrays = ("obs", "actions", "action_log_probs", "active_masks")
    recorded: dict[str, Any] = {
        name: [_tensor(getattr(b, name)) for b in buffers] for name in agent_arrays
    }
    for name in ("share_obs", "value_preds", "rewards", "bad_masks"):
        recorded[name] = _tensor(getattr(critic, name))
    return recorded | {"critic_masks": _tensor(critic.masks)}


def _import_checkout(path: Path) -> None:
    sys.path.insert(0, str(path))
    environments = types.ModuleType("harl.envs")
    environments.__path__ = [str(path / "harl" / "envs")]  # type: ignore[attr-defined]
    environments.LOGGER_REGISTRY = {}  # type: ignore[attr-defined]
    sys.modules["harl.envs"] = environments
    for name in ("setproctitle", "tensorboardX"):
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            stand_in = types.ModuleType(name)
            stand_in.SummaryWriter = object  # type: ignore[attr-defined]
            sys.modules[name] = stand_in


def _read_settings(path: Path) -> dict[str, Any]:
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    for section in settings.values():
        for name, value in section.items():
            if isinstance(value, str) and value[:1].isdigit():  # YAML 1.1 leaves 5e-4 a string
                section[name] = float(value)
    return settings


def _adam(optimizer: torch.optim.Optimizer, network: torch.nn.Module) -> dict[str, Any]:
    states = {
        name: optimizer.state[p] for name, p in network.named_parameters() if p in optimizer.state
    }
    return {
        "lr": float(optimizer.param_groups[0]["lr"]),
        "step": max((int(state["step"]) for state in states.values()), default=0),
        "exp_avg": {name: state["exp_avg"].clone() for name, state in states.items()},
        "exp_avg_sq": {name: state["exp_avg_sq"].clone() for name, state in states.items()},
    }


def _copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(numpy.array(array, dtype=numpy.float32))
