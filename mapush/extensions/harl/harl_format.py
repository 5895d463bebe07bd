"""Upstream HARL's ``models/`` folders as a checkpoint format. An import registers it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from harl_mapush.runs.checkpoint import CONFIG as OUR_CONFIG
from harl_mapush.runs.checkpoint import actor_file
from harl_mapush.runs.formats import FORMATS, Format
from harl_mapush.runs.policy import TeamPolicy, check_sizes
from mapush.extensions.harl.harl_files import (
    CONFIG,
    MODELS,
    UPSTREAM_ONLY,
    config_beside,
    models_config,
    read,
)
from mqe.config import ConfigError
from mqe.controllers.network import build_network
from mqe.tensor_files import read_tensors
from mqe.vec_env import VecEnv


def load_off_policy(folder: Path, model: Mapping[str, Any], env: VecEnv) -> TeamPolicy:
    """Load the deterministic policy in a ``models/`` folder.

    ``model`` is that section of upstream's configuration. Raises ConfigError if the actors do not
    fit ``env``.
    """
    tensors = [read_tensors(folder / actor_file(agent)) for agent in range(env.num_agents)]
    try:
        network = build_network([_layers(weights, model) for weights in tensors], tensors)
    except ValueError as error:
        raise ConfigError(f"checkpoint {folder}: no off-policy actors of HARL ({error})") from None
    check_sizes(folder, network, env.spec)
    return TeamPolicy(network.to(env.device))


def _layers(weights: Mapping[str, Tensor], model: Mapping[str, Any]) -> list[list[Any]]:
    """Declare an actor's layers. Return [] for another network's weights."""
    names = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    names = [name for name in names if name.startswith(("pi.mlp.", "net.mlp."))]
    if not names:
        return []
    activations = [model.get("activation_func", "relu")] * (len(names) - 1)
    activations.append(model.get("final_activation_func", "tanh"))
    if names[0].startswith("net."):  # HASAC: a layer for the mean follows, squashed by tanh
        names.append("mu_layer")
        activations.append("tanh")

    layers = []
    for name, activation in zip(names, activations, strict=True):
        matrix = weights.get(f"{name}.weight")
        if matrix is None or matrix.dim() != 2:
            return []
        out_size, in_size = matrix.shape
        layers += [["linear", name, in_size, out_size], [activation]]
    return layers


def _is_format_of(folder: Path) -> bool:
    return not (folder / OUR_CONFIG).is_file() and config_beside(folder) is not None


def _num_agents(folder: Path) -> int:
    matches = [re.fullmatch(r"actor_agent(\d+)\.pt", path.name) for path in folder.iterdir()]
    return max((int(match[1]) + 1 for match in matches if match), default=1)


def _read_config(folder: Path) -> dict[str, Any]:
    matrices = [
        tensor for tensor in read_tensors(folder / actor_file(0)).values() if tensor.dim() == 2
    ]
    obs_size = matrices[0].shape[1] if matrices else 0  # inputs of the first layer
    return models_config(_config(folder), _num_agents(folder), obs_size)


def _load_team(folder: Path, env: VecEnv) -> TeamPolicy | None:
    file = read(_config(folder))
    if file.algo not in UPSTREAM_ONLY:
        return None
    return load_off_policy(folder, file.algo_args.get("model", {}), env)


def _config(folder: Path) -> Path:
    path = config_beside(folder)
    assert path is not None
    return path


HARL = FORMATS.register(
    "harl",
    Format(
        owner="HARL's",
        config=CONFIG,
        folder=MODELS,
        is_format_of=_is_format_of,
        num_agents=_num_agents,
        read_config=_read_config,
        load_team=_load_team,
    ),
)
