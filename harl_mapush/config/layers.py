"""Layers of settings: later layers win, and the result is checked."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.config.other_names import NAMES, SETTINGS_FILES
from harl_mapush.config.sections import (
    DEFAULT_ALGORITHM,
    DEFAULT_TASK,
    NAMED_SECTIONS,
    SECTION_CLASSES,
    SECTIONS,
    RunCfg,
)
from harl_mapush.config.user_modules import check_imports
from mqe.config import ConfigError, build, check_values, load_yaml, merge, unknown
from mqe.registry import TASKS

_DEFAULT_NAMES = {"task": DEFAULT_TASK, "algorithm": DEFAULT_ALGORITHM}
# Keys in files of mapush 0.3 by section, and the values at which they have no effect
_KEYS_OF_0_3 = load_yaml(Path(__file__).with_name("keys_of_0_3.yaml"))


def _leave_out_folder(logger: dict[str, Any], named: Mapping[str, Any]) -> list[str]:
    """Remove a file's run folder from ``logger`` unless it lies below the present folder. Return
    notices.
    """
    name = logger.get("out_dir")
    if not isinstance(name, str) or "out_dir" in named:
        return []
    path = Path(name).expanduser()
    if not path.is_absolute() and ".." not in path.parts:
        return []
    logger["out_dir"] = None
    return [
        f"logger.out_dir={name} left out: a file of settings may write only below the present "
        f"folder; say --out {name}"
    ]


def resolve(base: Mapping[str, Any], over: Mapping[str, Any]) -> tuple[RunCfg, list[str]]:
    """Return the settings of ``over`` on top of ``base``, checked and complete, and notices.

    ``over`` may name another task or algorithm than ``base``. Keys of ``base`` unknown to the new
    one are left out, with a notice.
    """
    notices: list[str] = []
    check_layer(base)
    check_layer(over)
    for layer in (base, over):  # before names registered by these modules
        check_imports(layer.get("env"))

    sections: dict[str, dict[str, Any]] = {name: dict(base.get(name) or {}) for name in SECTIONS}
    for section, default in _DEFAULT_NAMES.items():
        notices += _rename(section, default, sections, over)
    for section in SECTION_CLASSES:
        sections[section] = without_former_keys(section, sections[section])
    over = {
        section: without_former_keys(section, content or {}, sections[section].get("name"))
        for section, content in over.items()
    }
    notices += _leave_out_folder(sections["logger"], over.get("logger", {}))
    values = merge(sections, over)
    task = TASKS[values["task"]["name"]]
    notices += _replace(task.replaces, values["task"], over.get("task", {}))
    usual = task.usual_env(build(task.cfg, values["task"], "task"))
    values["env"] = {**usual, **values["env"]}
    classes = SECTION_CLASSES | {
        "task": task.cfg,
        "algorithm": ALGORITHMS[values["algorithm"]["name"]].cfg,
    }
    cfg = RunCfg(**{name: build(classes[name], values[name], name) for name in SECTIONS})
    network = cfg.algorithm.built_network(cfg.network)
    ignored = [
        f"network.{field.name}"
        for field in fields(network)
        if getattr(cfg.network, field.name) not in (field.default, getattr(network, field.name))
    ]
    if ignored:
        named = ", ".join(ignored)
        notices.append(f"{named} left out: networks of {cfg.algorithm.name} are without them here")
    return replace(cfg, network=network), notices


def without_former_keys(
    section: str, content: Mapping[str, Any], name: str | None = None
) -> dict[str, Any]:
    """Return a section's settings without keys of 0.3 at values without an effect.

    ``name`` is that of the section's task or algorithm. Its own options stay.
    """
    former = dict(_KEYS_OF_0_3.get(section, {}))
    cls = SECTION_CLASSES.get(section)
    if cls is None:
        assert name is not None
        cls = NAMED_SECTIONS[section][name].cfg
    for field in fields(cls):
        former.pop(field.name, None)
    return {
        key: value
        for key, value in content.items()
        if key not in former or value not in former[key]
    }


def _rename(
    section: str, default: str, sections: dict[str, dict[str, Any]], over: Mapping[str, Any]
) -> list[str]:
    """Set the name in ``section`` to the one in ``over``. Return notices about omitted keys."""
    registry = NAMED_SECTIONS[section]
    old = sections[section].get("name", default)
    new = (over.get(section) or {}).get("name", old)
    for name in (old, new):
        registry.find(name, f"{section}.name")
    notices = []
    sections[section] = without_former_keys(section, sections[section], old)
    if new != old:
        content = {key: value for key, value in sections[section].items() if key != "name"}
        sections[section] = _common_keys(content, registry[new].cfg)
        left_out = [key for key in content if key not in sections[section]]
        if left_out:
            named = ", ".join(f"{section}.{key}" for key in left_out)
            notices.append(f"{named} left out: set for {old}, unknown to {new}")
        if section == "task" and sections["env"].pop("num_agents", None) is not None:
            notices.append(
                f"env.num_agents left out: the team of {new} is its own unless it is named"
            )
    sections[section]["name"] = new
    return notices


def check_layer(values: Mapping[str, Any]) -> None:
    """Raise ConfigError for an unknown section, or for a section without keys."""
    for section, content in values.items():
        if section not in SECTIONS:
            words = unknown("section", section, SECTIONS)
            if section in NAMES:
                flags = " or ".join(f"--{name} FILE" for name in SETTINGS_FILES)
                words += f"; files of other libraries are read by {flags or 'extensions'}"
            raise ConfigError(words)
        if content is not None and not isinstance(content, Mapping):
            raise ConfigError(
                f"{section}: must be a section of keys, not {content!r}; try {section}.key=value"
            )
        name = (content or {}).get("name", "")
        if not isinstance(name, str):
            raise ConfigError(f"{section}.name: must be a string, not {name!r}")


def _replace(
    replaces: Mapping[str, str], content: dict[str, Any], named: Mapping[str, Any]
) -> list[str]:
    """Remove settings from ``content`` if ``named`` has a replacement for them. Return notices."""
    notices = []
    for key, replaced in replaces.items():
        if key in named and replaced not in named and content.get(replaced) is not None:
            content[replaced] = None
            notices.append(f"task.{replaced} left out: task.{key} takes its place")
    return notices


def _common_keys(content: Mapping[str, Any], new: type) -> dict[str, Any]:
    """Return the settings with values that the class ``new`` allows."""
    common = {}
    for key, value in content.items():
        # Keys of a mapping, such as the names of rewards, are known to the whole class only.
        check = build if isinstance(value, Mapping) else check_values
        with suppress(ConfigError):
            check(new, {key: value}, "")
            common[key] = value
    return common
