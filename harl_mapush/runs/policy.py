"""Trained teams for evaluation, films and clients."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

from harl_mapush import config
from harl_mapush.runs import checkpoint, evaluation_worlds, exported
from harl_mapush.runs.formats import Team
from mqe.config import ConfigError
from mqe.controllers.network import Actor, TeamNetwork
from mqe.env.environment import MultiAgentEnv
from mqe.vec_env import TeamSpec, VecEnv

_LOG = logging.getLogger(__name__)


def load_team(folder: Path, env: VecEnv) -> Team:
    """Load a checkpoint's team, in any known format. Raise ConfigError if it does not fit.

    Warns by the library's log if ``env`` differs from the worlds of the training.
    """
    settings = checkpoint.read_config(folder)
    num_agents = settings["env"]["num_agents"]
    trained = config.resolve(settings, {})[0]
    if not evaluation_worlds.acts_in_teams_of(trained, env.num_agents):
        raise ConfigError(
            f"checkpoint {folder} was trained with env.num_agents={num_agents}, and this "
            f"environment has {env.num_agents}; build one of its team's size "
            "(harl_mapush.runs.evaluation_worlds.settings)"
        )
    if isinstance(env, MultiAgentEnv):
        unfamiliar = evaluation_worlds.unfamiliar(folder, env)
        if unfamiliar is not None:
            _LOG.warning("Note: %s.", unfamiliar)
    return make_team(folder, env)


def make_team(folder: Path, env: VecEnv) -> Team:
    """Build a checkpoint's team for any ``env``."""
    foreign = checkpoint.format_of(folder).load_team(folder, env)
    if foreign is not None:
        return foreign
    return exported_team(folder, env.spec, env.device)


def exported_team(folder: Path, spec: TeamSpec, device: torch.device) -> TeamPolicy:
    """Build the team of a checkpoint's exported policy. Raise ConfigError for other sizes."""
    network = exported.policy_of(folder).network(device, "checkpoint")
    check_sizes(folder, network, spec)
    return TeamPolicy(network)


class TeamPolicy:
    """A team's exported policy, from obs (N, A, O) to actions (N, A, U).

    A recurrent team keeps its memory between calls.
    """

    def __init__(self, network: TeamNetwork) -> None:
        """Act by ``network``, for a team of any size if all robots share one actor."""
        self.network = network
        self.is_recurrent = network.memory_size > 0
        self._memory: Tensor | None = None

    def actor(self, agent: int) -> Actor:
        """Return the network of one robot."""
        return self.network.actor(agent)

    @torch.no_grad()
    def __call__(self, obs: Tensor) -> Tensor:
        """Return the team's actions (N, A, U) for obs (N, A, O)."""
        if not self.is_recurrent:
            return self.network(obs)
        size = self.network.memory_size
        if self._memory is None:
            self._memory = obs.new_zeros(*obs.shape[:2], size)
        decided = self.network(torch.cat((obs, self._memory), dim=-1))
        self._memory = decided[..., -size:]
        return decided[..., :-size]

    def reset_memory(self, done: Tensor) -> None:
        """Reset the memory in worlds with a finished episode, ``done`` (N,) bool."""
        if self._memory is not None:
            self._memory = self._memory.masked_fill(done.view(-1, 1, 1), 0.0)


def check_sizes(folder: Path, network: TeamNetwork, spec: TeamSpec) -> None:
    """Raise ConfigError if the networks' inputs and outputs differ from the task's."""
    if len(network.actors) not in (1, spec.num_agents):
        raise ConfigError(
            f"checkpoint {folder}: has {len(network.actors)} actors for a team of "
            f"{spec.num_agents}; build an environment of its team's size"
        )
    for agent, sizes in enumerate(zip(spec.obs_sizes, spec.action_sizes, strict=True)):
        actor = network.actor(agent)
        if (actor.in_size, actor.out_size) != sizes:
            raise ConfigError(
                f"checkpoint {folder}: does not fit this task, robot count and network (its actor "
                f"has {actor.in_size} inputs and {actor.out_size} outputs, and robot {agent} "
                f"{sizes[0]} and {sizes[1]}); the settings that it was trained with are in its own "
                f"{checkpoint.format_of(folder).config}"
            )
