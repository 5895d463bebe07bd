"""A trained team that acts: what evaluation, video and clients ask for decisions."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

from harl_mapush import checkpoint, playing
from harl_mapush.algorithms import ALGORITHMS, TeamSpec
from harl_mapush.config import RunCfg
from harl_mapush.interop.harl_actors import OffPolicyTeam
from harl_mapush.interop.harl_files import UPSTREAM_ONLY, config_beside, read
from harl_mapush.networks import Actor
from mqe.config import ConfigError
from mqe.env import MultiAgentEnv
from mqe.vec_env import VecEnv

_LOG = logging.getLogger(__name__)


def load_team(cfg: RunCfg, folder: Path, env: VecEnv) -> TeamPolicy | OffPolicyTeam:
    """Load the team of a checkpoint, ours or upstream HARL's; raise ConfigError where it does not fit.

    Warns, by the library's log, where ``env`` is another kind of world than the team learned in.
    """
    num_agents = checkpoint.read_config(folder)["env"]["num_agents"]
    if env.num_agents != num_agents:
        raise ConfigError(
            f"checkpoint {folder} was trained with env.num_agents={num_agents}, and this environment has "
            f"{env.num_agents}; build one of its team's size (harl_mapush.playing.settings)"
        )
    unfamiliar = playing.unfamiliar(folder, env) if isinstance(env, MultiAgentEnv) else None
    if unfamiliar is not None:
        _LOG.warning("Note: %s.", unfamiliar)
    path = config_beside(folder) if checkpoint.is_upstream(folder) else None
    if path is not None and read(path).algo in UPSTREAM_ONLY:
        return OffPolicyTeam(folder, env)
    return TeamPolicy(cfg, folder, env)


class TeamPolicy:
    """Deterministic decisions, obs (N, A, O) to actions (N, A, U); recurrent teams remember between them."""

    def __init__(self, cfg: RunCfg, folder: Path, env: VecEnv) -> None:
        """Load the checkpoint in ``folder``; raise ConfigError where it does not fit ``env`` and ``cfg``."""
        learner = ALGORITHMS[cfg.algorithm.name].cls
        try:
            algorithm = learner(cfg.algorithm, cfg.network, TeamSpec.of(env), env.device, cfg.runner.seed)
        except ValueError as error:
            raise ConfigError(f"checkpoint {folder}: {error}") from None
        checkpoint.load_actors(folder, algorithm.actors)
        self._algorithm = algorithm
        self._masks = torch.ones(env.num_envs, device=env.device)
        self._hidden: Tensor | None = None
        if cfg.network.use_recurrent_policy:
            shape = (env.num_agents, env.num_envs, *algorithm.actors[0].hidden_shape)
            self._hidden = torch.zeros(shape, device=env.device)

    @property
    def actors(self) -> list[Actor]:
        """Return the robots' networks, in their order; agents that share one have it more than once."""
        return self._algorithm.actors

    def __call__(self, obs: Tensor) -> Tensor:
        """Decide."""
        decision = self._algorithm.act(obs, self._hidden, self._masks, deterministic=True)
        self._hidden = decision.hidden
        return decision.actions

    def forget(self, done: Tensor) -> None:
        """Begin a new episode where ``done`` (N,) bool."""
        if self._hidden is not None:
            self._hidden = self._hidden.masked_fill(done.view(1, -1, 1, 1), 0.0)
