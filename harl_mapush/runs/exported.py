"""A checkpoint's policy as one artefact: ``policy.yaml`` beside the actors' files.

``checkpoint.save`` calls ``export``. Checkpoints without the file, older ones and those of other
formats, are described in memory when a controller or the calculator asks for their policy.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harl_mapush import config
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.config import RunCfg
from harl_mapush.runs import checkpoint
from mqe.config import ConfigError, to_dict
from mqe.controllers.frozen_policy import (
    DESCRIPTION,
    POLICY_READERS,
    Policy,
    PolicyDescription,
    read_policy,
    write_description,
)
from mqe.controllers.network import declare
from mqe.manifest import sha256
from mqe.registry import TASKS
from mqe.tasks.task import Task
from mqe.tensor_files import read_tensors
from mqe.world.robots import ROBOTS
from mqe.world.streams import Streams

CPU = torch.device("cpu")


def export(folder: Path, cfg: RunCfg, actors: Sequence[nn.Module], task: Task) -> None:
    """Write ``policy.yaml`` for actors trained in ``task`` with the settings ``cfg``.

    Actors without declared layers get no file.
    """
    if all(declare(actor) is not None for actor in actors):
        description = _describe(folder, cfg, actors, task)
        write_description(folder, replace(description, command=shlex.join(sys.argv)))


def policy_of(folder: Path) -> Policy:
    """Return a checkpoint's policy.

    Raises ConfigError for a damaged checkpoint, and for actors without declared layers.
    """
    if (folder / DESCRIPTION).is_file():
        return read_policy(str(folder))
    cfg, _ = config.resolve(checkpoint.read_config(folder), {})
    env = replace(cfg.env, num_envs=1)
    # A task over its scene, without a simulator.
    task = TASKS[cfg.task.name].make(cfg.task, env, CPU, Streams(0, 1, CPU)).task
    description = _describe(folder, cfg, _build_actors(folder, cfg, task), task)
    tensors = [read_tensors(folder / name) for name in description.weights]
    return Policy(str(folder), description, tensors)


def copy_description(source: Path, folder: Path) -> None:
    """Write the description of the checkpoint ``source`` for the other weights in ``folder``."""
    description = policy_of(source).description
    weights = {name: sha256(folder / name) for name in description.weights}
    write_description(folder, replace(description, weights=weights))


def _describe(
    folder: Path, cfg: RunCfg, actors: Sequence[nn.Module], task: Task
) -> PolicyDescription:
    """Return a checkpoint's description. Raise ConfigError for actors without declared layers."""
    declarations = [declare(actor) for actor in actors]
    if any(layers is None for layers in declarations):
        raise ConfigError(
            f"checkpoint {folder}: its actors declare no layers, which every use of it needs"
        )
    is_shared = len(set(actors)) == 1
    files = checkpoint.actor_files(folder, 1 if is_shared else len(actors))
    if all(layers == declarations[0] for layers in declarations):
        declarations = declarations[:1]

    settings = to_dict(cfg)
    entry = TASKS[cfg.task.name]
    env = {key: value for key, value in settings["env"].items() if key != "imports"}
    others = [f"robot{k}" for k in range(1, task.spec.num_agents)]
    return PolicyDescription(
        weights={name: sha256(folder / name) for name in files},
        robots=robot_names(cfg.env.robots),
        model=cfg.env.model,
        num_robots=len(actors),
        largest_team=entry.largest_team(cfg.task) if is_shared else None,
        decision_period=task.decision_period,
        observations=describe_observation(task, 0, others),
        actions=describe_actions(cfg, task, 0),
        learned_in={"env": env | {"num_agents": len(actors)}, "task": settings["task"]},
        actors=tuple(declarations),
    )


def robot_names(robots: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Return the kinds of robots, with names in place of paths."""
    if isinstance(robots, str):
        return ROBOTS.find(robots, "env.robots").name
    return tuple(ROBOTS.find(robot, "env.robots").name for robot in robots)


def _build_actors(folder: Path, cfg: RunCfg, task: Task) -> list[nn.Module]:
    """Build a checkpoint's actors, one a robot."""
    try:
        acting = cfg.algorithm.for_acting()
        algorithm = make_algorithm(acting, cfg.network, task.spec, CPU, cfg.runner.seed)
    except ValueError as error:
        raise ConfigError(f"checkpoint {folder}: {error}") from None
    return [algorithm.networks[f"actor_agent{i}"] for i in range(task.spec.num_agents)]


def describe_observation(task: Task, agent: int, others: Sequence[str]) -> dict[str, Any]:
    """Return names, unit and meaning of an agent's observation components by term.

    ``others`` names the other agents in their order in the observation.
    """
    describe = task.features.describe_observation
    if describe is not None:
        return dict(describe(others))
    names = [f"obs_{k}" for k in range(task.spec.obs_sizes[agent])]
    return {"obs": {"names": names, "unit": "1"}}


def describe_actions(cfg: RunCfg, task: Task, agent: int) -> dict[str, Any]:
    """Return names, unit and scale of an agent's actions."""
    actions = dict(TASKS[cfg.task.name].actions(cfg.task))
    if not actions:
        size = task.spec.action_sizes[agent]
        names = [f"action_{k}" for k in range(size)]
        actions = {"names": names, "unit": "1", "scale": [1.0] * size}
    return actions


# A run's policy, or a checkpoint's in any format.
POLICY_READERS.register(
    "checkpoint", lambda name: policy_of(checkpoint.resolve(name))._replace(name=name)
)
