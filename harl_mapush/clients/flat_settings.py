"""Flat settings dictionaries, as HARL's runners pass them to an environment.

Our settings have sections and dotted names (``env.num_envs``). HARL has one level of keys
(``n_threads``, ``object``).
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np

from harl_mapush import config
from harl_mapush.config import RunCfg
from mqe.config import ConfigError, merge, nested, unknown
from mqe.notices import note
from mqe.registry import TASKS

KEYS = {
    "num_envs": "env.num_envs",
    "n_threads": "env.num_envs",  # HARL's name
    "num_agents": "env.num_agents",
    "device": "sim.device",
    "sim": "sim.name",
    "seed": "runner.seed",
    "task": "task.name",
}
SECTIONS = ("env", "sim", "task")  # possible starts of a dotted key
TEAM_REWARD = "team_reward"
# Keys of MAPush's fork for HARL with one possible value, always in effect here.
ALWAYS = {
    "headless": (True, "no window is ever opened here; to watch a team say mapush play"),
    "record_video": (False, "to film a team say mapush play TEAM --record FILE.mp4"),
}


def long_key(key: str) -> str:
    """Return our name for a key of HARL's flat dictionary: ``sim.device`` for ``device``."""
    if not isinstance(key, str):
        raise ConfigError(f"key {key!r}: must be a string, for instance n_threads or env.num_envs")
    return KEYS.get(key, key if "." in key else f"task.{key}")


def parse_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn HARL's flat environment settings into sections. Raise ConfigError for an unknown key.

    ``KEYS`` maps HARL's keys to our names. A dotted key (``sim.num_threads``) is our name already.
    Any other key belongs to the task (``object``, ``state_type``, ``observation``, ...). None
    leaves a default unchanged. Two keys for one setting are an error, but ``num_envs`` replaces
    ``n_threads``.
    """
    sections: dict[str, Any] = {}
    spellings = keys_of_settings(settings)
    plain = plain_keys(
        settings[spellings["task.name"]] if "task.name" in spellings else config.DEFAULT_TASK
    )
    for long, key in spellings.items():
        section = long.partition(".")[0]
        if key == long and section not in SECTIONS:
            raise ConfigError(f"{key}: {unknown('section', section, SECTIONS)}")
        if key != long and key not in plain:
            raise ConfigError(unknown("key", key, plain))
        sections = merge(sections, nested(long, as_python(settings[key])))
    return sections


def resolve_settings(settings: Mapping[str, Any]) -> RunCfg:
    """Return a flat dictionary as a run's settings. Errors spell keys as the dictionary does."""
    sections = parse_settings(settings)
    with spelled(keys_of_settings(settings)):
        return config.resolve({}, sections)[0]


def team_reward_of(settings: Mapping[str, Any], state_type: str) -> str:
    """Return each agent's reward in HARL's flat settings: ``own``, ``mean`` or ``sum``.

    The default is the mean with EP states, since HARL's critic learns agent 0's reward alone, and
    each agent's own with FP states.
    """
    choice = settings.get(TEAM_REWARD)
    if choice is not None:
        return choice
    return "mean" if state_type == "EP" else "own"


def keys_of_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the key for every given setting. Raise ConfigError for two keys with one setting."""
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"settings: must be a dictionary of keys, not {settings!r}; say {{}} for the defaults"
        )
    spellings: dict[str, str] = {}
    for key, value in settings.items():
        if key == TEAM_REWARD or value is None:
            continue
        if key in ALWAYS:
            possible, hint = ALWAYS[key]
            if value is not possible:
                raise ConfigError(f"{key}: {hint}")
            continue
        if key == "n_threads" and settings.get("num_envs") is not None:
            if value != settings["num_envs"]:
                note(f"n_threads={value} has no effect beside num_envs={settings['num_envs']}")
            continue
        long = long_key(key)
        if long in spellings:
            raise ConfigError(
                f"{spellings[long]} and {key}: two spellings of one setting; leave one of them out"
            )
        spellings[long] = key
    return spellings


def plain_keys(task: Any) -> list[str]:
    """Return the keys without a dot in a task's settings, or in all tasks' for an unknown task."""
    cfgs = [entry.cfg for name, entry in TASKS.items() if name == task] or [
        entry.cfg for entry in TASKS.values()
    ]
    names = (field.name for cfg in cfgs for field in fields(cfg))
    return list(dict.fromkeys((*KEYS, TEAM_REWARD, *names)))


def as_python(value: Any) -> Any:
    """Return NumPy's whole numbers, such as random seeds, as Python's."""
    return value.item() if isinstance(value, np.integer) else value


@contextmanager
def spelled(spellings: Mapping[str, str]) -> Iterator[None]:
    """Context manager: make errors name every setting by the user's own key."""
    try:
        yield
    except ConfigError as error:
        text = str(error)
        for long, key in spellings.items():
            if key != long:
                text = re.sub(rf"(?<![\w.]){re.escape(long)}(?!\w)", key, text)
        raise ConfigError(text) from None
