"""``make_mqe_env``, as scripts for MQE and MAPush call it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from mqe.config import ConfigError, build, unknown
from mqe.env.environment import MultiAgentEnv
from mqe.registry import TASKS, SimCfg, make_env
from mqe.tasks.entry import EnvCfg

# Arguments of MQE's command line, and their settings here
_ARGUMENTS = {
    "num_envs": ("env", "num_envs"),
    "num_agents": ("env", "num_agents"),
    "sim_device": ("sim", "device"),
}


class MqeCfg(NamedTuple):
    """An environment's settings."""

    env: EnvCfg
    sim: SimCfg
    task: Any


def custom_cfg(args: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that sets the arguments in a dictionary of settings by section."""
    return partial(_with_arguments, args)


def make_mqe_env(
    task: str, args: Any = None, custom_cfg: Callable[[dict[str, Any]], Any] | None = None
) -> tuple[MultiAgentEnv, MqeCfg]:
    """Return an environment and its settings.

    ``args`` may have ``num_envs``, ``num_agents``, ``sim_device`` and ``seed``. ``custom_cfg``
    changes a dictionary of settings by section. Raises ConfigError for an impossible setting.
    """
    cfg_class = TASKS.find(task, "task").cfg
    sections = _with_arguments(args, {"env": {}, "sim": {}, "task": {"name": task}})
    if custom_cfg is not None:
        sections = custom_cfg(sections) or sections
    for section in sections:
        if section not in MqeCfg._fields:
            raise ConfigError(f"custom_cfg: {unknown('section', section, MqeCfg._fields)}")
    cfg = MqeCfg(
        build(EnvCfg, sections.get("env", {}), "env"),
        build(SimCfg, sections.get("sim", {}), "sim"),
        build(cfg_class, sections["task"], "task"),
    )
    seed = getattr(args, "seed", None)
    return make_env(cfg.env, cfg.sim, cfg.task, 1 if seed is None else seed), cfg


def _with_arguments(args: Any, sections: dict[str, Any]) -> dict[str, Any]:
    """Set the command line's arguments in ``sections``, and return them."""
    for argument, (section, key) in _ARGUMENTS.items():
        if getattr(args, argument, None) is not None:
            sections[section][key] = getattr(args, argument)
    return sections
