"""Checkpoints of teams that push as exported networks, which controllers load.

This module is the team reader that derives a description from a checkpoint's settings and weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from harl_mapush.runs import checkpoint
from mqe.config import ConfigError
from mqe.controllers.team_network import TEAM_READERS, TeamDescription
from mqe.tasks.push.settings import PushCfg
from mqe.tensor_files import read_tensors
from mqe.world.robots import DEFAULT_ROBOT

_TASK = PushCfg().name


def read_checkpoint(name: str) -> tuple[Path, TeamDescription] | None:
    """Describe the team of a run, a checkpoint or ``pretrained:NAME``; None if it is none of these.

    Raises ConfigError for a checkpoint that is damaged, or whose actors cannot be described.
    """
    try:
        folder = checkpoint.resolve(name)
    except ConfigError as error:
        raise ConfigError(f"task.team: {error}") from None
    settings = checkpoint.read_config(folder)
    num_robots = settings["env"]["num_agents"]
    names = [checkpoint.stored_file(folder, checkpoint.actor_file(i)) for i in range(num_robots)]
    weights = tuple(dict.fromkeys(names))
    actor = read_tensors(folder / weights[0])
    return folder, describe(name, settings, actor, weights)


def describe(
    name: str, settings: Mapping[str, Any], actor: Mapping[str, Tensor], weights: tuple[str, ...]
) -> TeamDescription:
    """Return the description of a team with these settings and the first robot's ``actor``."""
    task = settings.get("task") or {}
    env = settings.get("env") or {}
    network = settings.get("network") or {}
    learned = task.get("name", _TASK)
    if learned != _TASK:
        raise ConfigError(
            f"task.team: '{name}' learned {learned}, and a team that pushes is needed; name one "
            f"that learned {_TASK}"
        )
    sets = network.get("sets", "flat")
    if sets != "flat":
        raise ConfigError(
            f"task.team: '{name}' was trained with network.sets={sets}, which a frozen team has "
            "not; name one that was trained with network.sets=flat"
        )
    robots = env.get("robots", DEFAULT_ROBOT)
    return TeamDescription(
        steps=_steps(name, network, actor),
        weights=weights,
        num_robots=env["num_agents"],
        robots=robots if isinstance(robots, str) else tuple(robots),
        model=env.get("model", "reference"),
        task=dict(task),
    )


def _steps(name: str, network: Mapping[str, Any], actor: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the steps of an actor of this project, on-policy or off-policy."""
    activation = str(network.get("activation"))
    norm = re.compile(r"obs_norm\.\w+")
    if any(norm.fullmatch(key) for key in actor):
        raise ConfigError(
            f"task.team: '{name}' was trained with network.normalize_obs, which a frozen team has "
            "not; name one without"
        )
    if "mu_layer.weight" in actor:
        hidden = _hidden(actor, "net.mlp")
        norm_first = True
        last = ("linear mu_layer", "tanh")
    elif "act.action_out.fc_mean.weight" in actor:
        hidden = _hidden(actor, "base.mlp.fc")
        norm_first = False
        last = ("linear act.action_out.fc_mean",)
        if "rnn.norm.weight" in actor:
            last = ("gru rnn.rnn", "layer_norm rnn.norm", *last)
        if network.get("mean_bound") is not None:
            last = (*last, f"bound {network['mean_bound']}")
    else:
        raise ConfigError(
            f"task.team: '{name}': its actors are of no known kind; name a team of happo, mappo, "
            "ippo, hatrpo or hasac"
        )
    steps: list[str] = []
    if "base.feature_norm.weight" in actor:
        steps.append("layer_norm base.feature_norm")
    for linear, layer_norm in hidden:
        after = [activation]
        if layer_norm is not None:
            after.insert(0 if norm_first else 1, f"layer_norm {layer_norm}")
        steps += [f"linear {linear}", *after]
    return (*steps, *last)


def _hidden(actor: Mapping[str, Tensor], prefix: str) -> list[tuple[str, str | None]]:
    """Return the names of every hidden layer, and of the layer norm beside it, if there is one."""
    pattern = re.compile(rf"({re.escape(prefix)}\.\d+)\.weight")
    found = [match[1] for match in map(pattern.fullmatch, actor) if match]
    hidden: list[tuple[str, str | None]] = []
    for layer in found:
        if actor[f"{layer}.weight"].dim() == 2:
            hidden.append((layer, None))
        else:
            hidden[-1] = (hidden[-1][0], layer)
    return hidden


TEAM_READERS.register("checkpoint", read_checkpoint)
