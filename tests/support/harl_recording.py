"""Recordings of upstream HARL's updates: the layout ``harl-parity-1``, and a file's differences
from it.

A layout is a dictionary of layouts, a list of layouts, the shape of a float tensor, a type, None,
Any, or a function from a value to its layout.
"""

from __future__ import annotations

import io
import lzma
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.algorithms.happo import Happo
from harl_mapush.algorithms.on_policy import OnPolicy
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.settings import OnPolicyCfg
from mapush.extensions.harl.harl_settings import keys_of
from mqe.tensor_files import read_file

FORMAT = "harl-parity-1"
NUM_STAGES = 2
HEAD: dict[str, Any] = {
    "meta": {"algo": str},
    "config": {"train": {"num_env_steps": float}, "model": dict, "algo": dict},
    "env": {
        "state_type": str,
        **dict.fromkeys(("n_agents", "T", "N", "obs_dim", "share_obs_dim", "act_dim"), int),
    },
    "stages": [{"computed": dict, "buffer": dict}] * NUM_STAGES,
}
_KINDS = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    dict: "a dictionary",
    list: "a list",
}


class LayoutError(ValueError):
    """A file is not a recording of this layout."""


def read(path: str | Path) -> dict[str, Any]:
    """Load a recording, plain or ``.xz``, without code execution. Raise LayoutError for other
    files.
    """
    path = Path(path)
    try:
        record = read_file(
            io.BytesIO(lzma.decompress(path.read_bytes())) if path.suffix == ".xz" else path
        )
    except OSError as error:
        raise LayoutError(
            f"{path}: cannot be read ({error.strerror or error}); check the path"
        ) from error
    except Exception as error:  # torch raises many kinds for a damaged file
        raise LayoutError(
            f"{path}: no file of torch.save, or damaged, or with more in it than plain values "
            "and tensors, which are "
            "all that is read"
        ) from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        record_format = record.get("format") if isinstance(record, dict) else type(record).__name__
        raise LayoutError(f"{path}: layout is {record_format!r}, not {FORMAT!r}")
    for fault in faults(record, HEAD):
        raise LayoutError(f"{path}: {fault}")
    algorithms = [name for name, entry in ALGORITHMS.items() if issubclass(entry.cfg, OnPolicyCfg)]
    if record["meta"]["algo"] not in algorithms:
        raise LayoutError(
            f"{path}: algorithm {record['meta']['algo']!r} is none of {', '.join(algorithms)}"
        )
    absent = [
        key for key in settled_by_harl(record["meta"]["algo"]) if not _holds(record["config"], key)
    ]
    if absent:
        raise LayoutError(f"{path}: missing settings, under config: {', '.join(absent)}")
    return record


def settled_by_harl(name: str) -> list[str]:
    """Return HARL's dotted keys for the settings of algorithm ``name`` and its networks."""
    switches = (
        "model.use_naive_recurrent_policy",
        "model.use_recurrent_policy",
        "algo.use_max_grad_norm",
        "train.use_linear_lr_decay",
    )
    return sorted({*keys_of(name), *switches})


def _holds(config: Mapping[str, Any], key: str) -> bool:
    section, _, name = key.partition(".")
    return name in config[section]


def check_stage(record: Mapping[str, Any], index: int, algorithm: OnPolicy) -> None:
    """Raise LayoutError if a stage lacks data for a replay by ``algorithm``."""
    stage = record["stages"][index]
    for fault in faults(stage, _stage_layout(algorithm, record["env"])):
        raise LayoutError(fault)
    if sorted(stage["computed"]["agent_order"]) != list(range(algorithm.num_agents)):
        raise LayoutError("computed.agent_order must name every agent once")
    if not all(_is_permutation(order) for order in stage["randperm"]):
        raise LayoutError("randperm must hold permutations, as tensors of whole numbers")


def faults(value: Any, layout: Any, where: str = "") -> Iterator[str]:
    """Name the parts with differences from the layout."""
    if layout is Any:
        return
    if callable(layout) and not isinstance(layout, type):
        layout = layout(value)
    if isinstance(layout, dict):
        yield from _dictionary_faults(value, layout, where)
    elif isinstance(layout, list):
        if not isinstance(value, list) or len(value) != len(layout):
            size = f" of {len(value)}" if isinstance(value, list) else ""
            yield f"{where} must be a list of {len(layout)}, not {type(value).__name__}{size}"
        else:
            for index, (item, part) in enumerate(zip(value, layout, strict=True)):
                yield from faults(item, part, f"{where}[{index}]")
    elif isinstance(layout, tuple):
        if (
            not isinstance(value, Tensor)
            or not value.is_floating_point()
            or tuple(value.shape) != layout
        ):
            if isinstance(value, Tensor):
                has = f"{value.dtype} {tuple(value.shape)}"
            else:
                has = type(value).__name__
            yield f"{where} must be a tensor of floats {layout}, not {has}"
    elif layout is None:
        if value is not None:
            yield f"{where} must be None, not {type(value).__name__}"
    elif isinstance(value, bool) or not isinstance(
        value, (int, float) if layout is float else layout
    ):
        yield f"{where} must be {_KINDS[layout]}, not {type(value).__name__}"


def _dictionary_faults(value: Any, layout: Mapping[str, Any], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} must be a dictionary, not {type(value).__name__}"
        return
    for key, part in layout.items():
        at = f"{where}.{key}" if where else key
        if key in value:
            yield from faults(value[key], part, at)
        else:
            yield f"{at} is missing"


def _stage_layout(algorithm: OnPolicy, env: Mapping[str, Any]) -> dict[str, Any]:
    """T decisions, N environments. With FP states, the critic's arrays have agents as the next
    axis.
    """
    steps = env["T"]
    envs = env["N"]
    agents = env["n_agents"]
    critic = (envs, agents) if env["state_type"] == "FP" else (envs,)
    is_recurrent = algorithm.network.use_recurrent_policy
    has_factor = isinstance(algorithm, Happo)
    learner = _learner_layout(algorithm)
    return {
        "pre": learner,
        "post": learner,
        "buffer": {
            "obs": [(steps + 1, envs, env["obs_dim"])] * agents,
            "actions": [(steps, envs, env["act_dim"])] * agents,
            "action_log_probs": [(steps, envs, env["act_dim"])] * agents,
            "active_masks": [(steps + 1, envs, 1)] * agents,
            "share_obs": (steps + 1, *critic, env["share_obs_dim"]),
            "rewards": (steps, *critic, 1),
            **dict.fromkeys(("value_preds", "critic_masks", "bad_masks"), (steps + 1, *critic, 1)),
            "rnn_states": [(steps + 1, envs, *algorithm.actors[0].hidden_shape)] * agents
            if is_recurrent
            else Any,
            "rnn_states_critic": (steps + 1, *critic, *algorithm.critic.hidden_shape)
            if is_recurrent
            else Any,
        },
        "computed": {
            "next_value": (*critic, 1),
            "returns": (steps + 1, *critic, 1),
            "advantages_norm": [(steps, envs, 1)] * agents,
            "agent_order": [int] * agents,
            "factor": [(steps, envs, 1)] * agents if has_factor else None,
        },
        "randperm": list,
    }


def _learner_layout(algorithm: OnPolicy) -> dict[str, Any]:
    return {
        "actor": [_shapes(actor) for actor in algorithm.unique_actors],
        "critic": _shapes(algorithm.critic),
        "value_norm": _shapes(algorithm.normalizer) if algorithm.cfg.use_value_norm else Any,
        "actor_optim": [partial(_adam_layout, optimizer) for optimizer in algorithm.optimizers],
        "critic_optim": partial(_adam_layout, algorithm.value.optimizer),
    }


def _adam_layout(optimizer: FlatAdam, value: Any) -> dict[str, Any]:
    """Moments are empty as long as there was no step."""
    shapes = {
        name: tuple(p.shape) for name, p in zip(optimizer.names, optimizer.parameters, strict=True)
    }
    is_new = isinstance(value, dict) and value.get("step") == 0
    moments = dict if is_new else shapes
    return {"lr": float, "step": int, "exp_avg": moments, "exp_avg_sq": moments}


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _is_permutation(order: Any) -> bool:
    if not isinstance(order, Tensor) or order.dim() != 1 or order.dtype != torch.int64:
        return False
    return torch.equal(order.sort().values, torch.arange(len(order)))
