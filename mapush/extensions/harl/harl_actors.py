"""Actors from upstream HARL's off-policy trainings (HASAC, HADDPG, HATD3), for evaluation.

The networks are rebuilt from their weights' shapes. Actions lie between -1 and 1, as in this
project's environments.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from harl_mapush.runs import checkpoint
from mapush.extensions.harl.harl_files import config_beside, read
from mqe.config import ConfigError, unknown
from mqe.controllers.network import ACTIVATIONS
from mqe.tensor_files import read_tensors
from mqe.vec_env import VecEnv


class OffPolicyTeam:
    """The deterministic policy in a ``models/`` folder, obs (N, A, O) to actions (N, A, U)."""

    def __init__(self, folder: Path, env: VecEnv) -> None:
        """Load the actors in ``folder``. Raise ConfigError if they do not fit ``env``."""
        path = config_beside(folder)
        assert path is not None
        model = read(path).algo_args.get("model", {})
        activations = [
            model.get("activation_func", "relu"),
            model.get("final_activation_func", "tanh"),
        ]
        for name in activations:
            if name not in ACTIVATIONS:
                raise ConfigError(
                    f"checkpoint {folder}: {unknown('activation', name, ACTIVATIONS)}"
                )
        self.actors: list[nn.Module] = []
        for agent, sizes in enumerate(zip(env.spec.obs_sizes, env.spec.action_sizes, strict=True)):
            name = folder / checkpoint.actor_file(agent)
            actor = _actor(read_tensors(name), *activations)
            if actor is None or (actor[0].in_features, actor[-2].out_features) != sizes:
                raise ConfigError(
                    f"checkpoint file {name}: no off-policy actor with input size {sizes[0]} and "
                    f"output size {sizes[1]}, as this task and number of robots need"
                )
            self.actors.append(actor.to(env.device).requires_grad_(False))

    def __call__(self, obs: Tensor) -> Tensor:
        """Return the actions for ``obs``."""
        return torch.stack([actor(obs[:, agent]) for agent, actor in enumerate(self.actors)], dim=1)

    def reset_memory(self, done: Tensor) -> None:
        """Do nothing: these actors are not recurrent."""


def _actor(
    weights: dict[str, Tensor], activation: str, final_activation: str
) -> nn.Sequential | None:
    """Rebuild an actor from its weights. Return None for another network's weights."""
    names = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    trunk = [name for name in names if name.startswith(("pi.mlp.", "net.mlp."))]
    if not trunk:
        return None
    after = [activation] * (len(trunk) - 1) + [final_activation]
    layers = list(zip(trunk, after, strict=True))
    if trunk[0].startswith("net."):  # HASAC: a layer for the mean follows, squashed by tanh
        layers.append(("mu_layer", "tanh"))

    stack: list[nn.Module] = []
    for name, follows in layers:
        if f"{name}.weight" not in weights or f"{name}.bias" not in weights:
            return None
        out_size, in_size = weights[f"{name}.weight"].shape
        linear = nn.Linear(in_size, out_size)
        linear.load_state_dict(
            {"weight": weights[f"{name}.weight"], "bias": weights[f"{name}.bias"]}
        )
        stack += [linear, ACTIVATIONS[follows]()]
    return nn.Sequential(*stack)
