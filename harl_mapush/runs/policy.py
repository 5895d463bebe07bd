"""A trained team that acts, for evaluation, video and clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from harl_mapush import config
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.config import RunCfg
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.runs.formats import Team
from mqe.config import ConfigError
from mqe.env.environment import MultiAgentEnv
from mqe.vec_env import VecEnv

_LOG = logging.getLogger(__name__)

Weights = Mapping[str, dict[str, Tensor]]  # state dicts by network


def load_team(cfg: RunCfg, folder: Path, env: VecEnv) -> Team:
    """Load the team of a checkpoint of any known kind; raise ConfigError if it does not fit.

    Warns by the library's log if ``env`` differs from the worlds that the team learned in.
    """
    own = checkpoint.read_config(folder)
    num_agents = own["env"]["num_agents"]
    trained = config.resolve(own, {})[0]
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
    return make_team(cfg, folder, env)


def make_team(cfg: RunCfg, folder: Path, env: VecEnv, weights: Weights | None = None) -> Team:
    """Build the team of a checkpoint for any ``env``.

    ``weights`` are the actors' if they were already read (``checkpoint.read_actors``).
    """
    foreign = checkpoint.format_of(folder).load_team(folder, env)
    if foreign is not None:
        return foreign
    return TeamPolicy(cfg, folder, env, weights)


class TeamPolicy:
    """A team's deterministic policy, from obs (N, A, O) to actions (N, A, U).

    A recurrent team keeps its hidden states between calls.
    """

    def __init__(
        self, cfg: RunCfg, folder: Path, env: VecEnv, weights: Weights | None = None
    ) -> None:
        """Load the checkpoint in ``folder``; raise ConfigError if ``env`` does not fit."""
        try:
            acting = cfg.algorithm.for_acting()
            spec = env.spec
            algorithm = make_algorithm(acting, cfg.network, spec, env.device, cfg.runner.seed)
        except ValueError as error:
            raise ConfigError(f"checkpoint {folder}: {error}") from None
        # A team of another size shares the first robot's actor.
        num_stored = checkpoint.read_config(folder)["env"]["num_agents"]
        names = [f"actor_agent{i}" for i in range(min(num_stored, env.num_agents))]
        actors = {name: algorithm.networks[name] for name in names}
        checkpoint.load_actors(folder, actors, weights)
        self._algorithm = algorithm
        self._num_agents = env.num_agents
        self.is_recurrent = cfg.network.use_recurrent_policy
        self._hidden: Tensor | None = None

    @property
    def actors(self) -> list[nn.Module]:
        """The robots' networks in order; a shared network is repeated."""
        return [self._algorithm.networks[f"actor_agent{i}"] for i in range(self._num_agents)]

    def __call__(self, obs: Tensor) -> Tensor:
        """Return the team's actions (N, A, U) for obs (N, A, O)."""
        decision = self._algorithm.act(obs, self._hidden, deterministic=True)
        self._hidden = decision.hidden
        return decision.actions

    def reset_memory(self, done: Tensor) -> None:
        """Reset the hidden states of the worlds whose episode ended, ``done`` (N,) bool."""
        if self._hidden is not None:
            self._hidden = self._hidden.masked_fill(done.view(1, -1, 1, 1), 0.0)
