"""A run's parts: environment, algorithm and trainer."""

from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.collectors.async_runner import AsyncRunner
from harl_mapush.collectors.remote_env import RemoteEnvSpec
from harl_mapush.config import RunCfg
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.runner import Runner
from harl_mapush.trainer import Trainer
from mqe.config import ConfigError
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env


class Parts(NamedTuple):
    """A run's environment, and the trainer with its algorithm."""

    env: MultiAgentEnv | RemoteEnvSpec
    trainer: Trainer


def build(cfg: RunCfg, ranks: Ranks, learner: torch.device, stack: ExitStack) -> Parts:
    """Build this rank's environment, algorithm and trainer. ``stack`` closes them.

    Raises ConfigError for conflicting settings of algorithm, network and runner.
    """
    has_collectors = cfg.runner.collectors > 0
    try:
        env: Any
        if has_collectors:
            env = RemoteEnvSpec(cfg, learner)
        else:
            share = ranks.share(cfg.env.num_envs)
            env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed, share)
            stack.callback(env.close)
            env.record_broken_worlds()
        spec = cfg.algorithm.team_spec(env)._replace(is_trained=cfg.runner.init_from is not None)
        algorithm = make_algorithm(
            cfg.algorithm, cfg.network, spec, learner, cfg.runner.seed, ranks
        )
        if has_collectors:
            return Parts(env, AsyncRunner(env, algorithm, cfg))
        return Parts(env, Runner(env, algorithm, cfg.runner, ranks))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"algorithm, network and runner do not go together: {error}") from None
