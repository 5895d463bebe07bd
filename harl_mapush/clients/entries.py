"""Environments under the contracts of other libraries, by name, and the one door to them.

To add a client here, write its file and a line below; to add one from outside, see
``mapush.register_client``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from harl_mapush.clients.harl.mapush_env import MAPushEnv
from harl_mapush.clients.openrl_env import OpenRLEnv
from harl_mapush.clients.worlds import Worlds
from harl_mapush.config import DEFAULT_TASK
from harl_mapush.interop.flat_settings import long_key, plain_settings, resolve_settings
from mqe.config import ConfigError, to_dict
from mqe.extensions import Registry, load_extensions

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
    given = {long_key(key) for key, value in flat.items() if value is not None}
    worlds = Worlds(resolve_settings(flat), "env.num_envs" in given)
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


def _openrl(worlds: Worlds, staggered: bool = True) -> OpenRLEnv:
    """Return the worlds under OpenRL's contract; ``staggered`` is that of ``OpenRLEnv``."""
    return OpenRLEnv(worlds.build(), worlds.cfg.task.name, staggered=staggered)


def _of_extra(extra: str, member: str) -> Client:
    """Return the client ``member`` of a module that needs the library of an extra."""

    def build(worlds: Worlds, **options: Any) -> Any:
        try:
            module = importlib.import_module(f"harl_mapush.clients.{extra}_env")
        except ImportError as error:
            raise ConfigError(
                f"client: {extra} cannot be imported here ({error}); pip install 'mapush[{extra}]'"
            ) from None
        return getattr(module, member)(worlds, **options)

    return build


CLIENTS.register("harl", _harl)
CLIENTS.register("openrl", _openrl)
CLIENTS.register("pettingzoo", _of_extra("pettingzoo", "PettingZooEnv"))
CLIENTS.register("gymnasium", _of_extra("gymnasium", "GymnasiumEnv"))
CLIENTS.register("torchrl", _of_extra("torchrl", "TorchRLEnv"))
CLIENTS.register("benchmarl", _of_extra("benchmarl", "BenchMARLTask"))
CLIENTS.register("skrl", _of_extra("skrl", "SkrlEnv"))
