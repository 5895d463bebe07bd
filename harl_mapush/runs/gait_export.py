"""Checkpoints of a gait's training as exported networks, which controllers load.

``checkpoint.save`` writes the description beside the weights. Older checkpoints have none; this
module is the gait reader that derives it from their settings and weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mqe.config import ConfigError, load_yaml, unknown
from mqe.controllers.gait_network import (
    ACTIVATIONS,
    GAIT_READERS,
    OBSERVATION,
    GaitDescription,
    write_description,
)
from mqe.manifest import check_files
from mqe.registry import TASKS
from mqe.tensor_files import read_tensors
from mqe.world.robots import DEFAULT_ROBOT

_CONFIG = "config.yaml"
_ACTOR = "actor_agent0.pt"
_OUTPUT = "act.action_out.fc_mean"
# Layers that a multilayer perceptron of an exported gait does not have.
_UNSUPPORTED = (
    "normalize_obs",
    "use_feature_normalization",
    "use_layer_norm",
    "use_recurrent_policy",
)


def is_gait(settings: Mapping[str, Any]) -> bool:
    """Return whether a run with these settings trains a gait."""
    task = settings.get("task")
    name = str(task.get("name")) if isinstance(task, Mapping) else ""
    return name in TASKS and TASKS[name].is_gait


def export(folder: Path) -> None:
    """Write the description of a gait's checkpoint beside its weights.

    Checkpoints of other tasks, and of networks that a gait must not have, get none.
    """
    settings = load_yaml(folder / _CONFIG)
    if not is_gait(settings):
        return
    try:
        description = describe(str(folder), settings, read_tensors(folder / _ACTOR))
    except ConfigError:
        return
    write_description(folder, description)


def read_checkpoint(folder: Path) -> GaitDescription | None:
    """Derive the description of a gait's checkpoint that has none; None if it is no checkpoint.

    Raises ConfigError for a checkpoint that is damaged, or whose actor cannot be a gait.
    """
    if not (folder / _CONFIG).is_file():
        return None
    if not (folder / _ACTOR).is_file():
        raise ConfigError(
            f"task.gait: '{folder}' is no checkpoint of a gait, it lacks {_ACTOR}; name a "
            "checkpoint of a gait or pretrained:NAME"
        )
    check_files(folder, [_CONFIG, _ACTOR])
    return describe(str(folder), load_yaml(folder / _CONFIG), read_tensors(folder / _ACTOR))


def describe(
    name: str, settings: Mapping[str, Any], actor: Mapping[str, Tensor]
) -> GaitDescription:
    """Return the description of an actor of this project; raise ConfigError if it cannot be a gait.

    ``name`` is the checkpoint in error messages.
    """
    task = settings.get("task")
    network = settings.get("network")
    if not isinstance(task, Mapping) or not isinstance(network, Mapping):
        raise ConfigError(f"task.gait: '{name}' lacks the sections task and network in {_CONFIG}")
    for key in _UNSUPPORTED:
        if network.get(key):
            raise ConfigError(
                f"task.gait: '{name}' was trained with network.{key}; a gait is a plain MLP"
            )
    activation = network.get("activation")
    if activation not in ACTIVATIONS:
        raise ConfigError(f"task.gait: '{name}': {unknown('activation', activation, ACTIVATIONS)}")

    hidden = re.compile(r"(base\.mlp\.fc\.\d+)\.weight")
    names = [match[1] for match in map(hidden.fullmatch, actor) if match]
    try:
        layers = {layer: len(actor[f"{layer}.weight"]) for layer in (*names, _OUTPUT)}
    except KeyError as error:
        raise ConfigError(
            f"task.gait: '{name}' is no gait, its actor lacks {error}; name a checkpoint of a gait "
            "or pretrained:NAME"
        ) from None
    return GaitDescription(
        robot=_robot(settings),
        observation=OBSERVATION,
        activation=activation,
        mean_bound=network.get("mean_bound"),
        weights=_ACTOR,
        layers=layers,
    )


def _robot(settings: Mapping[str, Any]) -> str:
    """Return the kind of robot of a run; settings older than ``env.robots`` are of the default."""
    env = settings.get("env")
    robots = env.get("robots", DEFAULT_ROBOT) if isinstance(env, Mapping) else DEFAULT_ROBOT
    return str(robots if isinstance(robots, str) else robots[0])


GAIT_READERS.register("checkpoint", read_checkpoint)
