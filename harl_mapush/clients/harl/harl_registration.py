"""Upstream HARL as a client: its own runners train in this project's environments, its checkout
unmodified.

HARL chooses environments by name inside its modules and has no way in for others.
``register_with_harl`` puts the name ``mapush`` into those modules as they lie in memory. Every
other name is passed to HARL's own functions.
"""

import functools
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl_mapush.clients.flat_settings import KEYS, long_key, plain_keys
from harl_mapush.clients.harl.harl_env import Array, Infos, box
from harl_mapush.clients.harl.harl_logger import bound_logger, make_logger
from harl_mapush.clients.harl.mapush_env import MAPushEnv
from mqe.config import ConfigError, import_extra, install, load_yaml

ENV_NAME = "mapush"
PATH_VARIABLE = "HARL_PATH"  # names a checkout if no argument does
DEFAULT_SETTINGS: dict[str, Any] = {
    "task": "go1push_mid",
    "object": "cuboid",
    "num_agents": None,
    "state_type": "EP",
    "device": "auto",
    "team_reward": None,
}
# HARL's factors, for seeds outside the training
_EVAL_SEED = 50_000
_RENDER_SEED = 60_000
_RENDER_THREADS = 1
_ON_POLICY = "harl.runners.on_policy_base_runner"
_OFF_POLICY = "harl.runners.off_policy_base_runner"
_TOOLS = "harl.utils.envs_tools"
_CONFIGS = "harl.utils.configs_tools"


class UpstreamEnv(MAPushEnv):
    """``MAPushEnv`` for upstream's code: a list of None for available actions, and spaces as wide
    as the arrays.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Build the environment. Raise ConfigError for an impossible setting."""
        super().__init__(settings)
        state_type = settings.get("state_type") or "EP"
        if self.state_type != state_type:  # upstream reads the plain key
            raise ConfigError(
                f"state_type: upstream goes by state_type={state_type!r}; set it instead of "
                "task.state_type"
            )
        self.observation_space = [box(self.env.spec.obs_size) for _ in range(self.n_agents)]
        self.action_space = [box(self.env.spec.action_size, 1.0) for _ in range(self.n_agents)]

    def reset(self) -> tuple[Array, Array, Any]:
        """Start new episodes. See ``HarlEnv.reset``."""
        obs, states, _ = super().reset()
        return obs, states, [None] * self.n_threads

    def step(self, actions: Any) -> tuple[Array, Array, Array, NDArray[np.bool_], Infos, Any]:
        """Apply actions for one decision. See ``HarlEnv.step``."""
        *rest, _ = super().step(actions)
        return *rest, [None] * self.n_threads  # type: ignore[return-value]


def register_with_harl(path: str | Path | None = None) -> None:
    """Make upstream HARL know the environment ``mapush``.

    ``path`` is a checkout. Without it the variable HARL_PATH names one, or ``harl`` is installed.
    Afterwards ``harl.runners.RUNNER_REGISTRY[algo](args, algo_args, env_args)`` works with
    ``args["env"] = "mapush"`` and the keys of ``MAPushEnv`` as ``env_args``. Raises ConfigError
    if HARL or one of its packages is missing.
    """
    _find(path)
    registry = _import("harl.envs").LOGGER_REGISTRY
    if ENV_NAME in registry:
        return
    training: list[UpstreamEnv] = []  # the environment for the next logger

    def make_train_env(seed: int, n_threads: int, env_args: Mapping[str, Any]) -> UpstreamEnv:
        training[:] = [_make(env_args, n_threads, seed)]
        return training[0]

    def make_eval_env(seed: int, n_threads: int, env_args: Mapping[str, Any]) -> UpstreamEnv:
        return _make(env_args, n_threads, seed * _EVAL_SEED)

    def make_render_env(
        seed: int, env_args: Mapping[str, Any]
    ) -> tuple[UpstreamEnv, bool, bool, bool, int]:
        env = _make(env_args, _RENDER_THREADS, seed * _RENDER_SEED)
        return env, False, False, False, _RENDER_THREADS

    envs = (_ON_POLICY, _OFF_POLICY, _TOOLS)
    ours: list[tuple[str, tuple[str, ...], Callable[..., Any]]] = [
        ("make_train_env", envs, make_train_env),
        ("make_eval_env", envs, make_eval_env),
        ("make_render_env", envs, make_render_env),
        ("get_num_agents", envs, lambda env_args, envs: envs.n_agents),
        ("get_task_name", (_OFF_POLICY,), task_name),
        ("get_task_name", (_CONFIGS,), task_name),
    ]
    _import("harl.runners")
    for name, places, function in ours:
        theirs = getattr(_import(places[-1]), name)
        for owner in places:
            setattr(_import(owner), name, _by_name(function, theirs))
    configs = _import(_CONFIGS)
    configs.get_defaults_yaml_args = _defaults_or(configs.get_defaults_yaml_args)
    registry[ENV_NAME] = bound_logger(import_logger(path), lambda: training[0])


def import_logger(path: str | Path | None = None) -> type:
    """Return ``MAPushLogger``, derived from upstream's logger. Raise ConfigError without HARL."""
    _find(path)
    return make_logger(_import("harl.common.base_logger").BaseLogger)


def import_runner() -> type:
    """Return ``MAPushHAPPORunner``, upstream's HAPPO runner in the environment ``mapush``.

    It takes the three dictionaries for HARL's runners. Raises ConfigError without HARL.
    """
    register_with_harl()
    return _runner_of(_import("harl.runners").RUNNER_REGISTRY["happo"])


@functools.cache
def _runner_of(base: type) -> type:
    class MAPushHAPPORunner(base):  # type: ignore[misc, valid-type]
        """Upstream's HAPPO runner. It ignores the environment's name in its arguments."""

        def __init__(
            self, args: Mapping[str, Any], algo_args: dict[str, Any], env_args: dict[str, Any]
        ) -> None:
            super().__init__({**args, "env": ENV_NAME}, algo_args, env_args)

    return MAPushHAPPORunner


def task_name(env_args: Mapping[str, Any]) -> str:
    """Return the task's name for HARL's lines and for its results folder."""
    return str(env_args.get("task") or DEFAULT_SETTINGS["task"])


def _defaults_or(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``get_defaults_yaml_args`` extended by the environment ``mapush``."""

    def get_defaults_yaml_args(algo: str, env: str) -> tuple[dict[str, Any], dict[str, Any]]:
        if env != ENV_NAME:
            return theirs(algo, env)
        package = Path(_import("harl").__path__[0])
        return load_yaml(package / "configs" / "algos_cfgs" / f"{algo}.yaml"), dict(
            DEFAULT_SETTINGS
        )

    return get_defaults_yaml_args


def _make(env_args: Mapping[str, Any], n_threads: int, seed: int) -> UpstreamEnv:
    decided = {KEYS[key] for key in ("n_threads", "seed")}
    task_keys = plain_keys(env_args.get("task"))
    rest = {}
    for key, value in env_args.items():
        # The defaults name an object, and other tasks than the push task have none.
        is_unused = key not in task_keys and value == DEFAULT_SETTINGS.get(key)
        if long_key(key) not in decided and not is_unused:
            rest[key] = value
    return UpstreamEnv({**rest, "n_threads": n_threads, "seed": seed})


def _by_name(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function: environment ``mapush`` goes to ``ours``, without the name, others to
    ``theirs``.
    """

    def choose(env: str, *arguments: Any, **keywords: Any) -> Any:
        if env == ENV_NAME:
            return ours(*arguments, **keywords)
        return theirs(env, *arguments, **keywords)

    return choose


def _find(path: str | Path | None) -> None:
    path = path if path is not None else os.environ.get(PATH_VARIABLE) or None
    if path is not None:
        folder = Path(path).resolve()
        if not (folder / "harl" / "runners").is_dir():
            raise ConfigError(
                f"{str(path)!r} is no checkout of HARL; name the folder that holds harl/runners"
            )
        loaded = sys.modules.get("harl")
        if loaded is not None and not (folder / "harl").samefile(loaded.__path__[0]):
            raise ConfigError(
                f"{str(path)!r}: another HARL is already loaded, from {loaded.__path__[0]}"
            )
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    elif importlib.util.find_spec("harl") is None:
        raise ConfigError(
            f"upstream HARL is not installed; {install('harl')} (Python 3.11 or 3.12), or "
            f"name a checkout in {PATH_VARIABLE}"
        )


def _import(name: str) -> Any:
    _stand_in_for_uu()
    return import_extra(name, "harl", "upstream HARL")


def _stand_in_for_uu() -> None:
    """Replace the module ``uu``, gone with Python 3.13: HARL imports an unused exception."""
    if sys.version_info >= (3, 13) and "uu" not in sys.modules:
        module = types.ModuleType("uu")
        module.Error = type("Error", (Exception,), {})  # type: ignore[attr-defined]
        sys.modules["uu"] = module
