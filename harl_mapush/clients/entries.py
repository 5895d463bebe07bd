"""Environments under other libraries' contracts, by name, and the one door to them and to trained
teams.

To add a client here, write its file and a line below. To add one from outside, see
``mapush.register_client``.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harl_mapush.clients.flat_settings import long_key, parse_settings, resolve_settings
from harl_mapush.clients.harl.mapush_env import MAPushEnv
from harl_mapush.clients.worlds import Worlds
from harl_mapush.config import DEFAULT_TASK
from harl_mapush.runs import checkpoint, evaluation_worlds, policy
from harl_mapush.runs.policy import Team
from mqe.config import ConfigError, import_extra
from mqe.env.environment import MultiAgentEnv
from mqe.extensions import Registry, load_extensions
from mqe.registry import make_env

# Takes ``Worlds``, and further options by keyword. Returns an environment.
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
    """Build a task's worlds under a client's contract, or as our own ``VecEnv``.

    ``settings`` has further settings by their dotted names, for instance ``{"task.object":
    "tblock"}``. ``options`` are the client's own. Raises ConfigError for an unknown name or value.
    """
    load_extensions()
    build = None if client is None else CLIENTS.find(str(client), "client")
    flat = {"task": task, "num_envs": num_envs, "seed": seed, **_checked(settings)}
    given = {long_key(key) for key, value in flat.items() if value is not None}
    worlds = Worlds(resolve_settings(flat), "env.num_envs" in given)
    if build is not None:
        return _build(build, str(client), worlds, options)
    if options:
        raise ConfigError(
            f"{next(iter(options))}: our own environment has no options; put it into settings, or "
            f"name a client ({', '.join(CLIENTS)})"
        )
    return worlds.build()


def load_team(
    name: str,
    *,
    num_envs: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[MultiAgentEnv, Team]:
    """Build the worlds for measuring a checkpoint, as ``mapush test`` does, and load its team.

    ``name`` is a checkpoint folder, a run folder or pretrained:NAME. The team maps obs (N, A, O) to
    actions (N, A, U), without noise. ``settings`` are as for ``make``.
    """
    load_extensions()
    folder = checkpoint.resolve(name)
    over = parse_settings({"num_envs": num_envs, "seed": seed, **_checked(settings)})
    cfg = evaluation_worlds.settings(folder, over)
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    return env, policy.load_team(folder, env)


def _checked(settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return settings. Raise ConfigError for a value other than a dictionary or None."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ConfigError(
            'settings: must be a dictionary of dotted names, as {"task.object": "tblock"}, not '
            f"{settings!r}"
        )
    return settings


def _build(build: Client, name: str, worlds: Worlds, options: Mapping[str, Any]) -> Any:
    """Return a client's environment. Raise ConfigError for an unknown option."""
    function = build.__init__ if isinstance(build, type) else build
    parameters = inspect.signature(function).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        allowed = [option for option in parameters if option not in ("self", "worlds")]
        for option in options:
            if option not in allowed:
                raise ConfigError(
                    f"{option}: {name} has no such option (allowed: "
                    f"{', '.join(allowed) or 'none'}); settings of the worlds go into settings"
                )
    return build(worlds, **options)


def _harl(worlds: Worlds, team_reward: str | None = None) -> MAPushEnv:
    """Return the worlds under HARL's contract, with ``team_reward`` as in ``MAPushEnv``."""
    return MAPushEnv({"team_reward": team_reward}, worlds.cfg)


@dataclass(frozen=True)
class ClientOfExtra:
    """A client of a library that an extra of this package installs."""

    name: str  # of the client and of the extra
    target: str  # MODULE:MEMBER, imported at the first use

    def __call__(self, worlds: Worlds, **options: Any) -> Any:
        """Return the worlds under the client's contract."""
        module, _, member = self.target.partition(":")
        client = getattr(import_extra(module, self.name, f"client: {self.name}"), member)
        return _build(client, self.name, worlds, options)


CLIENTS.register("harl", _harl)
CLIENTS.register(
    "gymnasium", ClientOfExtra("gymnasium", "harl_mapush.clients.gymnasium_env:GymnasiumEnv")
)
