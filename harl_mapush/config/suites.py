"""Suites: tests as data, in files with worlds, watchers, policies, episodes and seeds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harl_mapush.config.layers import check_layer
from harl_mapush.config.presets import configs_folder
from mqe.config import ConfigError, build, load_yaml, merge, option
from mqe.extensions import Registry
from mqe.pretrained import PRETRAINED
from mqe.registry import TASKS

ONE_FEWER = "one_fewer"  # the same team with one robot fewer, among the policies of a suite
SCRIPTS = "scripts"  # the task's scripted policies, among the policies of a suite
_SECTIONS = ("env", "task", "sim")  # of settings in a suite's file
SUITES: Registry[Path] = Registry(
    "suite", {path.stem: path for path in (configs_folder() / "suites").glob("*.yaml")}
)


@dataclass(frozen=True)
class Suite:
    """A test: the worlds, the measurements, and the policies for comparison.

    The fields are keys in a suite's file. ``worlds`` are its sections ``env``, ``task``, ``sim``.
    """

    name: str | None = None
    worlds: dict[str, Any] = option(
        dict, "settings of the tested worlds, as sections env, task and sim"
    )
    help: str = option("", "what the suite tests")
    watchers: tuple[str, ...] = option(
        ("pushing",),
        "measurements beside the task's own metrics: [pushing], or none, []",
        choices=("pushing",),
    )
    policies: tuple[str, ...] = option(
        (SCRIPTS,), "policies measured from equal starts, as in [scripts, one_fewer]"
    )
    episodes: int = option(300, "episodes of each seed", min=1)
    seeds: tuple[int, ...] = option((0,), "seeds, as in [0, 1]")
    conditions: dict[str, dict[str, Any]] = option(
        dict, "changed worlds by name, measured separately; empty: only the unchanged worlds"
    )
    examination: str | None = option(None, "a registered measurement in worlds of its own")


def register_suite(file: str | Path, task: str | None = None) -> None:
    """Register a YAML file as a suite for ``--suite``, under the file's name without the suffix.

    The suite becomes the default suite of ``task``. Raises ConfigError if the file holds no suite.
    """
    path = Path(file)
    _suite(path.stem, load_yaml(path))
    SUITES.register(path.stem, path)
    if task is not None:
        TASKS[task] = TASKS[task]._replace(suite=path.stem)


def suite_summaries() -> dict[str, str]:
    """Return every suite's help by name."""
    return {name: load_suite(name).help for name in sorted(SUITES)}


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
    return name if name in SUITES else None


def _read_all(names: str) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name in names.split(","):
        file = name if name.endswith(".yaml") else SUITES.find(name, "--suite")
        content = merge(content, load_yaml(file))
    return content


def _suite(name: str | None, content: Mapping[str, Any]) -> Suite:
    """Build a suite from the keys of a file. Raise ConfigError if they are not a suite's."""
    worlds = {key: value for key, value in content.items() if key in _SECTIONS}
    keys = {key: value for key, value in content.items() if key not in _SECTIONS}
    if {"name", "worlds"} & keys.keys():
        raise ConfigError("suite: name and worlds are no keys; leave them out")
    suite = build(Suite, keys, "suite")
    for changes in (worlds, *suite.conditions.values()):
        check_layer(changes)
    return replace(suite, name=name, worlds=worlds)
