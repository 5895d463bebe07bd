"""Environments under the contracts of other libraries, by name, and the one door to them.

To add a client here, write its file and a line below; to add one from outside, see
``mapush.register_client``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harl_mapush.clients.mapush_env import MAPushEnv, plain_settings, resolve_settings
from harl_mapush.clients.openrl_env import OpenRLEnv
from harl_mapush.config import DEFAULT_TASK, RunCfg
from mqe.config import ConfigError, to_dict
from mqe.env.environment import MultiAgentEnv
from mqe.extensions import Registry, load_extensions
from mqe.registry import make_env


@dataclass(frozen=True)
class Worlds:
    """The settings of a client's worlds."""

    cfg: RunCfg

    def build(self, seed: int | None = None) -> MultiAgentEnv:
        """Build the worlds; ``seed`` replaces that of the settings."""
        if seed is None:
            seed = self.cfg.runner.seed
        return make_env(self.cfg.env, self.cfg.sim, self.cfg.task, seed)


# Takes ``Worlds``, and options of its own by keyword; returns an environment.
Client = Callable[..., Any]
CLIENTS: Registry[Client] = Registry("client")


def make(
    task: str = DEFAULT_TASK,
    client: str | None = None,
    *,
    num_envs: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Build the worlds of a task under the contract of a client, or as our own ``VecEnv``.

    ``settings`` has further settings by their dotted names, for instance ``{"task.object":
    "tblock"}``. ``options`` are the client's own. Raises ConfigError for an unknown name or value.
    """
    load_extensions()
    build = None if client is None else CLIENTS.find(client, "client")
    flat = {"task": task, "num_envs": num_envs, "seed": seed, **(settings or {})}
    worlds = Worlds(resolve_settings(flat))
    if build is not None:
        return build(worlds, **options)
    if options:
        raise ConfigError(
            f"{next(iter(options))}: our own environment has no options; put it into settings, or "
            f"name a client ({', '.join(CLIENTS)})"
        )
    return worlds.build()


def _harl(worlds: Worlds, team_reward: str | None = None) -> MAPushEnv:
    """Return the worlds under HARL's contract; ``team_reward`` is that of ``MAPushEnv``."""
    cfg = worlds.cfg
    sections = {"env": to_dict(cfg.env), "sim": to_dict(cfg.sim), "task": to_dict(cfg.task)}
    settings = plain_settings({**sections, "runner": {"seed": cfg.runner.seed}})
    return MAPushEnv({**settings, "team_reward": team_reward})


def _openrl(worlds: Worlds) -> OpenRLEnv:
    """Return the worlds under OpenRL's contract."""
    return OpenRLEnv(worlds.build(), worlds.cfg.task.name)


CLIENTS.register("harl", _harl)
CLIENTS.register("openrl", _openrl)
