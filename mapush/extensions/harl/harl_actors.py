"""Actors from upstream HARL's off-policy trainings (HASAC, HADDPG, HATD3), for evaluation.

The networks are declared by their weights' names and shapes. Actions lie between -1 and 1, as in
this project's environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from harl_mapush.runs.checkpoint import actor_file
from harl_mapush.runs.policy import TeamPolicy, check_sizes
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
