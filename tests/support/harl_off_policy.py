"""Replay off-policy updates recorded from upstream HARL with this project's own algorithms, and
compare the results.

A file holds upstream's buffer and two stages with several updates each. A stage has the learner
before and after, and every update's draws: buffer rows, noise, agent order.
"""

from __future__ import annotations

import functools
import io
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.algorithms.hasac import Hasac
from harl_mapush.learning.off_policy.replay_buffer import RingReplay
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.settings import NetworkCfg
from mapush.extensions.harl.hatd3 import Hatd3
from mqe.vec_env import TeamSpec

FORMAT = "harl-off-policy-1"
# as in a replay's flags
_DONE = 2
_TERMINATED = 1
_VALID = 4
NETWORK_KEYS = {"hidden_sizes": "hidden_sizes", "activation_func": "activation"}
ALGORITHM_KEYS = {
    "lr": "learning_rate",
    "critic_lr": "critic_learning_rate",
    "gamma": "gamma",
    "buffer_size": "buffer_size",
    "batch_size": "batch_size",
    "polyak": "polyak",
    "n_step": "n_step",
    "share_param": "share_param",
    "fixed_order": "fixed_order",
    "auto_alpha": "auto_alpha",
    "alpha": "alpha",
    "alpha_lr": "alpha_learning_rate",
    "use_huber_loss": "use_huber_loss",
    "huber_delta": "huber_delta",
    "use_valuenorm": "use_value_norm",
    "use_policy_active_masks": "use_policy_active_masks",
    "policy_noise": "policy_noise",
    "noise_clip": "noise_clip",
    "policy_freq": "policy_delay",
}


@functools.cache
def read(path: Path) -> dict[str, Any]:
    """Load a recording (``.pt.xz``) without executing anything in it."""
    return torch.load(
        io.BytesIO(lzma.decompress(path.read_bytes())), map_location="cpu", weights_only=True
    )


def build(record: Mapping[str, Any]) -> Hasac | Hatd3:
    """Build the algorithm from a recording's configuration."""
    env = record["env"]
    name = record["meta"]["algo"]
    harl = {**record["config"]["train"], **record["config"]["model"], **record["config"]["algo"]}
    entry = ALGORITHMS[name]
    fields = entry.cfg.__dataclass_fields__
    settings = {
        ours: harl[theirs]
        for theirs, ours in ALGORITHM_KEYS.items()
        if theirs in harl and ours in fields
    }
    network = {ours: harl[theirs] for theirs, ours in NETWORK_KEYS.items()}
    network["hidden_sizes"] = tuple(network["hidden_sizes"])
    agents = env["n_agents"]
    spec = TeamSpec(
        (env["obs_dim"],) * agents,
        (env["act_dim"],) * agents,
        env["share_obs_dim"],
        _state_type(record),
    )
    cfg: Any = entry.cfg
    algorithm = entry.cls(cfg(compat="harl", warmup=0, **settings), NetworkCfg(**network), spec)
    assert isinstance(algorithm, (Hasac, Hatd3))
    return algorithm


def replay(record: Mapping[str, Any], stage: int) -> dict[str, float]:
    """Run one stage's updates and return the largest difference in every quantity."""
    algorithm = build(record)
    recorded = record["stages"][stage]
    ring = load_ring(algorithm, record)
    load_learner(algorithm, recorded["pre"])
    algorithm.num_updates = stage * len(recorded["updates"])
    sizes = {"batch": 0.0}
    for update in recorded["updates"]:
        batch = ring.look_up(update["index"])
        theirs = update["batch"]
        pairs = [
            (batch.returns, _by_row(theirs["reward"], batch.returns)),
            (batch.next_state, _by_row(theirs["next_share_obs"], batch.next_state)),
            (
                batch.discount,
                _by_row(theirs["gamma"] * (1.0 - theirs["term"]), batch.returns).view_as(
                    batch.discount
                ),
            ),
        ]
        sizes["batch"] = max(sizes["batch"], *(_distance(ours, other) for ours, other in pairs))
        noise = list(update["noise"])
        algorithm.noise = lambda *size, noise=noise: noise.pop(0)  # type: ignore[method-assign]
        algorithm.draw_order = lambda order=tuple(update["agent_order"]): order  # type: ignore[method-assign]
        algorithm.learn(batch)
    return sizes | compare(algorithm, recorded["post"])


def _state_type(record: Mapping[str, Any]) -> str:
    return record["env"].get("state_type", "EP")


def _by_row(theirs: Tensor, ours: Tensor) -> Tensor:
    """Return upstream's agent-major rows (G B, ...) in the shape of our own (B, G, ...)."""
    num_rows, num_views = ours.shape[:2]
    return theirs.reshape(num_views, num_rows, -1).transpose(0, 1).reshape(ours.shape)


def load_ring(algorithm: Hasac | Hatd3, record: Mapping[str, Any]) -> RingReplay:
    """Put upstream's flat buffer into a ring of rows."""
    buffer = record["buffer"]
    envs = record["env"]["N"]
    ring = algorithm.make_experience(1, envs).replay
    rows = ring.shape.num_rows

    def side_by_side(*parts: Tensor | list[Tensor]) -> Tensor:
        tensors = [
            x.flatten(1) for part in parts for x in (part if isinstance(part, list) else [part])
        ]
        return torch.cat(tensors, dim=1).view(rows, envs, -1)

    ring.here.copy_(
        side_by_side(
            buffer["obs"], buffer["share_obs"], buffer["actions"], buffer["valid_transitions"]
        )
    )
    ring.there.copy_(side_by_side(buffer["next_obs"], buffer["next_share_obs"]))
    ring.rewards.copy_(side_by_side(buffer["rewards"]))
    done, by_task = (buffer[name].view(rows, envs, -1).bool() for name in ("dones", "terms"))
    together = done.all(-1)
    ring.flags.copy_(together * _DONE + by_task.all(-1) * _TERMINATED + _VALID)
    if ring.shape.ends_apart:
        ring.ends.copy_((done & ~together.unsqueeze(-1)) * (_DONE | _TERMINATED))
    ring.newest.fill_((buffer["idx"] // envs - 1) % rows)
    return ring


def load_learner(algorithm: Hasac | Hatd3, state: Mapping[str, Any]) -> None:
    """Put the algorithm into a recorded state."""
    for actor, optimizer, saved, adam in zip(
        algorithm.unique_actors,
        algorithm.optimizers,
        state["actor"],
        state["actor_optim"],
        strict=not algorithm.cfg.share_param,
    ):
        actor.load_state_dict(saved)
        _load_adam(optimizer, adam)
    _load_twins(algorithm.critic, state["critic"])
    _load_twins(algorithm.target_critic, state["target_critic"])
    _load_adam(algorithm.critic_optimizer, state["critic_optim"])
    if isinstance(algorithm, Hatd3):
        for actor, saved in zip(algorithm.target_actors, state["target_actor"], strict=True):
            actor.load_state_dict(saved)
    if isinstance(algorithm, Hasac) and state["log_alpha"] is not None:
        algorithm.temperatures.log_alpha.data.copy_(state["log_alpha"])
        for name, saved in state["alpha_optim"].items():
            getattr(algorithm.alpha_optimizer, name).copy_(saved)
        algorithm.alpha_optimizer.step_count.fill_(state["critic_optim"]["step"])
    if state["value_norm"] is not None:
        algorithm.normalizer.load_state_dict(state["value_norm"])


def compare(algorithm: Hasac | Hatd3, state: Mapping[str, Any]) -> dict[str, float]:
    """Return the largest difference of every part from a recorded state."""
    is_shared = algorithm.cfg.share_param
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = {
        "actors": [
            p for a, s in zip(algorithm.actors, state["actor"], strict=True) for p in _pairs(a, s)
        ],
        "actors' Adam": [
            p
            for o, s in zip(algorithm.optimizers, state["actor_optim"], strict=not is_shared)
            for p in _adam_pairs(o, s)
        ],
        "critics": _twin_pairs(algorithm.critic, state["critic"]),
        "target critics": _twin_pairs(algorithm.target_critic, state["target_critic"]),
        "critics' Adam": _adam_pairs(algorithm.critic_optimizer, state["critic_optim"]),
    }
    if isinstance(algorithm, Hatd3):
        zipped = zip(algorithm.target_actors, state["target_actor"], strict=True)
        pairs["target actors"] = [p for a, s in zipped for p in _pairs(a, s)]
    if isinstance(algorithm, Hasac) and state["log_alpha"] is not None:
        pairs["temperatures"] = [(algorithm.temperatures.log_alpha.data, state["log_alpha"])]
        moments = state["alpha_optim"].items()
        pairs["temperatures' Adam"] = [
            (getattr(algorithm.alpha_optimizer, name), saved) for name, saved in moments
        ]
    if state["value_norm"] is not None:
        pairs["value normaliser"] = _pairs(algorithm.normalizer, state["value_norm"])
    return {name: max(_distance(*pair) for pair in tensors) for name, tensors in pairs.items()}


def _load_twins(critic: Any, saved: list[dict[str, Tensor]]) -> None:
    for network, weights in zip((critic.critic, critic.critic2), saved, strict=True):
        network.load_state_dict(weights)


def _twin_pairs(critic: Any, saved: list[dict[str, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [*_pairs(critic.critic, saved[0]), *_pairs(critic.critic2, saved[1])]


def _pairs(module: nn.Module, saved: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    ours = module.state_dict()
    assert ours.keys() == saved.keys()
    return [(ours[name], saved[name]) for name in ours]


def _load_adam(optimizer: FlatAdam, saved: Mapping[str, Any]) -> None:
    optimizer.learning_rate.fill_(saved["lr"])
    optimizer.step_count.fill_(saved["step"])
    for name in ("exp_avg", "exp_avg_sq") if saved["step"] else ():
        getattr(optimizer, name).copy_(torch.cat([part.reshape(-1) for part in saved[name]]))


def _adam_pairs(optimizer: FlatAdam, saved: Mapping[str, Any]) -> list[tuple[Tensor, Tensor]]:
    assert int(optimizer.step_count) == saved["step"]
    names = ("exp_avg", "exp_avg_sq")
    return [
        (getattr(optimizer, name), torch.cat([part.reshape(-1) for part in saved[name]]))
        for name in names
    ]


def _distance(ours: Tensor, theirs: Tensor) -> float:
    return float(torch.nan_to_num((ours - theirs.view_as(ours)).abs(), nan=float("inf")).max())
