"""Policies without training: zero actions, random actions, and each task's scripts."""

import importlib
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.evaluation.calculator import Policy
from harl_mapush.runs.policy import load_team
from mqe.config import ConfigError, unknown
from mqe.env.environment import MultiAgentEnv
from mqe.registry import TASKS


def policy_names(task: str | None = None) -> list[str]:
    """Return the names of a task's policies. None: all tasks'."""
    tasks = TASKS.values() if task is None else [TASKS[task]]
    return ["zero", "random", *dict.fromkeys(name for entry in tasks for name in entry.policies)]


def make_policy(name: str, task: str, env: MultiAgentEnv, seed: int) -> Policy:
    """Return a policy for ``env``. Raise ConfigError if the task lacks this name."""
    size = env.spec.action_size
    if name == "zero":
        return lambda obs: obs.new_zeros(*obs.shape[:2], size)
    if name == "random":
        generator = torch.Generator().manual_seed(seed)

        def draw(obs: Tensor) -> Tensor:
            actions = torch.rand(*obs.shape[:2], size, generator=generator)
            return (2.0 * actions - 1.0).to(obs.device)

        return draw
    if name not in TASKS[task].policies:
        raise ConfigError(unknown(f"policy of task {task}", name, policy_names(task)))
    return TASKS[task].policies[name](env)


def load_policy(team: Path | str, cfg: RunCfg, env: MultiAgentEnv) -> Policy:
    """Return the policy in a checkpoint's folder, or under a name or MODULE:FUNCTION."""
    if isinstance(team, Path):
        return load_team(team, env)
    if team in policy_names():
        return make_policy(team, cfg.task.name, env, cfg.runner.seed)
    return _checked(find_function(team), team, env)


def find_function(name: str) -> Policy:
    """Return the function under ``MODULE:FUNCTION``. Raise ConfigError if it is missing."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(
            f"--policy {name!r}: must have the form MODULE:FUNCTION, as in my_policies:straight"
        )
    config.import_modules([module], "--policy")
    function = getattr(importlib.import_module(module), attribute, None)
    if not callable(function):
        raise ConfigError(
            f"--policy {name}: module {module} has no function {attribute}; correct the name"
        )
    return cast("Policy", function)


def _checked(function: Policy, name: str, env: MultiAgentEnv) -> Policy:
    """Wrap a user's function. Raise ConfigError for wrong shapes."""

    def act(obs: Tensor) -> Tensor:
        actions = function(obs)
        shape = (len(obs), env.num_agents, env.spec.action_size)
        if not isinstance(actions, Tensor) or actions.shape != shape:
            is_tensor = isinstance(actions, Tensor)
            returned = tuple(actions.shape) if is_tensor else type(actions).__name__
            raise ConfigError(
                f"--policy {name}: returned {returned} for observations {tuple(obs.shape)}; "
                f"return a tensor of shape {shape}: worlds, agents, action components in [-1, "
                "1]"
            )
        return actions

    return act
