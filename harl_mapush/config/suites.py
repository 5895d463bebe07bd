"""Suites: tests as data, in files with worlds, watchers, policies, episodes and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from harl_mapush.config.layers import check_layer
from harl_mapush.config.presets import configs_folder
from mqe.config import ConfigError, load_yaml, merge, unknown
from mqe.pretrained import PRETRAINED
from mqe.registry import TASKS

ONE_FEWER = "one_fewer"  # the same team with one robot fewer, among the policies of a suite
SCRIPTS = "scripts"  # the task's scripted policies, among the policies of a suite
_SECTIONS = ("env", "task", "sim")  # of settings in a suite's file
_REGISTERED: dict[str, Path] = {}  # files of extensions and of users' packages, by name
_FORMER_NAMES: dict[str, str] = {}  # present names of registered suites by their former ones


@dataclass(frozen=True)
class Suite:
    """A test: the worlds, the measurements, and the policies for comparison.

    The fields are keys in a suite's file. ``worlds`` are its sections ``env``, ``task``, ``sim``.
    """

    name: str | None = None
    help: str = ""
    worlds: Mapping[str, Any] = field(default_factory=dict)  # sections of settings
    watchers: tuple[str, ...] = ("pushing",)  # measurements beside the task's own metrics
    # Policies measured from equal starts: names, ``SCRIPTS`` or ``ONE_FEWER``.
    policies: tuple[str, ...] = (SCRIPTS,)
    episodes: int = 300  # per seed
    seeds: tuple[int, ...] = (0,)
    # Changed worlds by name, measured separately. Empty: only the unchanged worlds.
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    examination: str | None = None  # a registered measurement in worlds of its own


def register_suite(
    file: str | Path, default_of: str | None = None, former_name: str | None = None
) -> None:
    """Register the suite in ``file`` under the file's name, without .yaml.

    ``default_of`` names the task with this suite as its default. ``--suite`` reads ``former_name``
    as well. Raises ConfigError if the file is not a suite.
    """
    path = Path(file)
    _read(path)
    _REGISTERED[path.stem] = path
    if former_name is not None:
        _FORMER_NAMES[former_name] = path.stem
    if default_of is not None:
        TASKS[default_of] = TASKS[default_of]._replace(suite=path.stem)


def suites() -> list[str]:
    """Return the names of the suites."""
    return sorted(_files())


def suite_summaries() -> dict[str, str]:
    """Return every suite's help by name."""
    return {name: _read(path)["help"] for name, path in sorted(_files().items())}


def load_suite(names: str) -> Suite:
    """Return the suite named ``names``, or in the file ``names``, with defaults for missing keys.

    Several names, joined by commas, are merged, later ones over earlier ones. Raises ConfigError
    for an unknown name or key.
    """
    return _suite(names, _read_all(names))


def measured_suite(task: str, names: str | None) -> Suite:
    """Return the suite for a policy of ``task``: ``names`` over the task's default."""
    default = TASKS[task].suite
    content = {} if default is None else _read_all(default)
    if names is not None:
        content = merge(content, _read_all(names))
    return _suite(names, content)


def suite_of_policy(name: str) -> str | None:
    """Return the suite of a shipped policy, ``pretrained:NAME``: the suite NAME if there is one."""
    name = name.removeprefix(PRETRAINED) if name.startswith(PRETRAINED) else ""
    return name if name in _files() else None


def default_worlds(task: str) -> Mapping[str, Any]:
    """Return the worlds of a task's default suite."""
    return measured_suite(task, None).worlds


def _files() -> dict[str, Path]:
    shipped = {path.stem: path for path in (configs_folder() / "suites").glob("*.yaml")}
    return shipped | _REGISTERED


def _read_all(names: str) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name in names.split(","):
        content = merge(content, _read(_file(name)))
    return content


def _file(name: str) -> Path:
    """Return the file of a suite."""
    if name.endswith(".yaml"):
        return Path(name)
    if name in _RENAMED:
        raise ConfigError(f"--suite {name}: is now --suite {_RENAMED[name]}")
    name = _FORMER_NAMES.get(name, name)
    files = _files()
    if name not in files:
        raise ConfigError(f"--suite: {unknown('suite', name, sorted(files))}")
    return files[name]


def _read(path: Path) -> dict[str, Any]:
    """Return the keys in a suite's file. Raise ConfigError if it is not a suite."""
    content = load_yaml(path)
    keys = {entry.name for entry in fields(Suite)} - {"name", "worlds"}
    for key in content:
        if key not in (*keys, *_SECTIONS):
            raise ConfigError(f"{path}: {unknown('key', key, sorted({*keys, *_SECTIONS}))}")
    content.setdefault("help", "")
    _check_worlds(path, {key: value for key, value in content.items() if key in _SECTIONS})
    conditions = content.get("conditions", {})
    if not isinstance(conditions, Mapping) or not all(
        isinstance(condition, Mapping) for condition in conditions.values()
    ):
        raise ConfigError(
            f"{path}: conditions: must map names to sections of settings, as in "
            "{far: {task: {goal_distance: [4.0, 6.0]}}}"
        )
    for condition in conditions.values():
        _check_worlds(path, condition)
    for key, kind in (("watchers", str), ("policies", str), ("seeds", int)):
        values = content.get(key, [])
        if not isinstance(values, list) or not all(type(value) is kind for value in values):
            raise ConfigError(f"{path}: {key}: {values!r} must be a list, as in [{_EXAMPLES[key]}]")
    episodes = content.get("episodes", 1)
    if type(episodes) is not int or episodes < 1:
        raise ConfigError(f"{path}: episodes: {episodes!r} must be a whole number from 1 on")
    return content


def _check_worlds(path: Path, layer: Mapping[str, Any]) -> None:
    """Raise ConfigError for impossible settings in a suite's file, or a program to start."""
    check_layer(layer)
    if (layer.get("sim") or {}).get("python") is not None:
        raise ConfigError(
            f"{path}: sim.python: a file of settings starts no program; say --set sim.python=..."
        )


def _suite(name: str | None, content: Mapping[str, Any]) -> Suite:
    """Build a suite from the keys of a file."""
    suite = Suite(name, worlds={key: value for key, value in content.items() if key in _SECTIONS})
    others = {key: value for key, value in content.items() if key not in _SECTIONS}
    for key in ("watchers", "policies", "seeds"):
        if key in others:
            others[key] = tuple(others[key])
    return replace(suite, **others)


_EXAMPLES = {"watchers": "pushing, places", "policies": "scripts, one_fewer", "seeds": "0, 1"}
# Suites of release 0.3 under other names.
_RENAMED = {f"any_n{number}": f"any --num_agents {number}" for number in range(1, 9)}
