"""MAPush's tasks under HARL's environment contract, built from one flat dictionary as HARL's
runners pass it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harl_mapush import config
from harl_mapush.clients.harl.harl_env import Array, HarlEnv, Infos
from harl_mapush.clients.world_picture import WorldPicture
from harl_mapush.config import RunCfg, RunnerCfg
from mqe.config import ConfigError, build, merge, unknown
from mqe.env.environment import MultiAgentEnv
from mqe.registry import TASKS, make_env

KEYS = {
    "num_envs": "env.num_envs",
    "n_threads": "env.num_envs",  # HARL's word
    "num_agents": "env.num_agents",
    "device": "sim.device",
    "sim": "sim.name",
    "seed": "runner.seed",
    "task": "task.name",
}
SECTIONS = ("env", "sim", "task")  # what a dotted key may begin with
TEAM_REWARD = "team_reward"
# Keys of MAPush's fork for HARL that ask for what is always so; the other values cannot be had.
ALWAYS = {"headless": True, "record_video": False}
_NEVER = {
    "headless": "headless: no window is ever opened here; to watch a team say mapush play",
    "record_video": "record_video: a training films nothing; to film a team say mapush film",
}
_REMEMBERED = 1000  # episodes of each deque


def long_key(key: str) -> str:
    """Return the setting that a key of HARL's flat dictionary means: ``sim.device`` for
    ``device``.
    """
    if not isinstance(key, str):
        raise ConfigError(f"key {key!r}: must be a string, for instance n_threads or env.num_envs")
    return KEYS.get(key, key if "." in key else f"task.{key}")


def parse_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn HARL's flat environment settings into sections; raise ConfigError for a key that has no
    place there.

    A key of ``KEYS`` means what stands there, a dotted one (``sim.num_threads``) is taken as it is,
    any other belongs to the task (``object``, ``state_type``, ``observation``, ...). None leaves a
    default alone. Two keys that mean one setting are an error.
    """
    sections: dict[str, Any] = {}
    spellings = _spellings(settings)
    plain = plain_keys(
        settings[spellings["task.name"]] if "task.name" in spellings else config.DEFAULT_TASK
    )
    for long, key in spellings.items():
        section, _, name = long.partition(".")
        if key == long and section not in SECTIONS:
            raise ConfigError(f"{key}: {unknown('section', section, SECTIONS)}")
        if key != long and key not in plain:
            raise ConfigError(unknown("key", key, plain))
        nested = _as_python(settings[key])
        for part in reversed(name.split(".")):
            nested = {part: nested}
        sections = merge(sections, {section: nested})
    return sections


def resolve_settings(settings: Mapping[str, Any]) -> RunCfg:
    """Return the settings of a run that a flat dictionary stands for; raise ConfigError, which
    spells keys as the dictionary does.
    """
    sections = parse_settings(settings)
    with _spelled(_spellings(settings)):
        return config.resolve({}, sections)[0]


def plain_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Turn sections into HARL's flat settings, each key spelled as shortly as ``parse_settings``
    understands it.
    """
    short = {long: key for key, long in KEYS.items()}
    long = {
        f"{section}.{name}": value
        for section, values in sections.items()
        for name, value in values.items()
    }
    return {short.get(key, key.removeprefix("task.")): value for key, value in long.items()}


def team_reward_of(settings: Mapping[str, Any], state_type: str) -> str:
    """Return which reward HARL's flat settings give each agent: ``own``, ``mean`` or ``sum``.

    Where they are silent it is the mean with EP states, of which HARL's critic learns agent 0's
    reward alone, and each agent's own with FP states.
    """
    choice = settings.get(TEAM_REWARD)
    if choice is not None:
        return choice
    return "mean" if state_type == "EP" else "own"


class MAPushEnv(HarlEnv):
    """The push task, or any other of the registry, for HARL's runners.

    Further keys of the dictionary reach every setting of the task; see ``parse_settings``.
    ``team_reward`` is what each agent is given; see ``team_reward_of``.
    """

    env: MultiAgentEnv

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Build ``settings["n_threads"]`` worlds; raise ConfigError for a setting that cannot
        be.
        """
        self._cfg = resolve_settings(settings)
        with _spelled(_spellings(settings)):
            env = self._make(self._cfg.runner.seed)
        team_reward = team_reward_of(settings, getattr(self._cfg.task, "state_type", "EP"))
        self._picture: WorldPicture | None = None
        # Of the last episodes, as in MAPush's fork; a broken one is none.
        self.episode_success: deque[float] = deque(maxlen=_REMEMBERED)
        self.episode_collision: deque[float] = deque(maxlen=_REMEMBERED)
        self.episode_lengths: deque[float] = deque(maxlen=_REMEMBERED)  # [s]
        self.episode_collaboration: deque[float] = deque(maxlen=_REMEMBERED)
        super().__init__(env, team_reward, env.report.headline)

    def step(self, actions: Any) -> tuple[Array, Array, Array, NDArray[np.bool_], Infos, Any]:
        """Apply actions for one decision; see ``HarlEnv.step``."""
        result = super().step(actions)
        is_done = np.atleast_1d(result[3].all(axis=1))
        if is_done.any():
            self._remember(is_done, result[4])
        if self._picture is not None and is_done[0]:
            self._picture.cut()
        return result

    @property
    def num_envs(self) -> int:
        """Number of worlds, HARL's ``n_threads``."""
        return self.n_threads

    @property
    def env_cfg(self) -> RunCfg:
        """The settings of the worlds."""
        return self._cfg

    @property
    def device(self) -> torch.device:
        """The device of the worlds."""
        return self.env.device

    def seed(self, seed: int) -> None:
        """Rebuild the worlds with another sequence of episodes; call ``reset`` next.

        A seed that cannot be is a ConfigError, as in the constructor, and leaves the worlds as they
        are.
        """
        with _spelled({KEYS["seed"]: "seed"}):
            checked = build(RunnerCfg, {"seed": _as_python(seed)}, "runner").seed
        self._release()
        self.env = self._make(checked)

    def render(self) -> NDArray[np.uint8]:
        """Return a picture (height, width, 3) of the first world as it is now; it needs no
        display.
        """
        if self._picture is None:
            self._picture = WorldPicture(self.env)
        return self._picture.draw()

    def close(self) -> None:
        """Free the simulator and what draws it."""
        self._release()

    def _make(self, seed: int) -> MultiAgentEnv:
        return make_env(self._cfg.env, self._cfg.sim, self._cfg.task, seed)

    def _remember(self, is_done: NDArray[np.bool_], infos: Infos) -> None:
        """Append the metrics of the episodes that ended, as far as the task has them."""
        ended = [i for i in np.flatnonzero(is_done) if "broken" not in infos[i][0]]
        for name, values in (
            ("success", self.episode_success),
            ("collision", self.episode_collision),
            ("episode_time_s", self.episode_lengths),
            ("collaboration_degree", self.episode_collaboration),
        ):
            if name in self.env.episode_metrics:
                metric = self.env.episode_metrics[name].cpu().numpy()
                # A metric that does not count for an episode is NaN.
                values.extend(float(metric[i]) for i in ended if np.isfinite(metric[i]))

    def _release(self) -> None:
        if self._picture is not None:
            self._picture.close()
            self._picture = None
        self.env.close()


def _spellings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Lead from every setting that is given to its key in ``settings``; raise ConfigError where it
    has two.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"settings: must be a dictionary of keys, not {settings!r}; say {{}} for the defaults"
        )
    spellings: dict[str, str] = {}
    for key, value in settings.items():
        if key == TEAM_REWARD or value is None:
            continue
        if key in ALWAYS:
            if value is not ALWAYS[key]:
                raise ConfigError(_NEVER[key])
            continue
        long = long_key(key)
        if long in spellings:
            raise ConfigError(
                f"{spellings[long]} and {key}: two spellings of one setting; leave one of them out"
            )
        spellings[long] = key
    return spellings


def plain_keys(task: Any) -> list[str]:
    """List the keys without a dot that a task's settings may have; all tasks' where there is no
    such task.
    """
    cfgs = [entry.cfg for name, entry in TASKS.items() if name == task] or [
        entry.cfg for entry in TASKS.values()
    ]
    own = (field.name for cfg in cfgs for field in fields(cfg))
    return list(dict.fromkeys((*KEYS, TEAM_REWARD, *own)))


def _as_python(value: Any) -> Any:
    """Return NumPy's whole numbers, which random seeds often are, as Python's."""
    return value.item() if isinstance(value, np.integer) else value


@contextmanager
def _spelled(spellings: Mapping[str, str]) -> Iterator[None]:
    """Let complaints name every setting by the key that the user wrote for it."""
    try:
        yield
    except ConfigError as error:
        text = str(error)
        for long, key in spellings.items():
            if key != long:
                text = re.sub(rf"(?<![\w.]){re.escape(long)}(?!\w)", key, text)
        raise ConfigError(text) from None
