"""SPACE.yaml: a run, its varied settings, and the metric for the ranking."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from harl_mapush import config
from harl_mapush.config import RunCfg
from mqe.config import ConfigError, build, flatten, load_yaml, merge, option, to_dict

SWEEP = "sweep.yaml"
SETTINGS = "settings.yaml"  # the run that is varied
_FORMS = "a list of values, {range: [low, high]} or {log: [low, high]}"
# Trials have the same device, seed and budget, and logs in the sweep's folder.
_FIXED = ("sim.", "logger.", "runner.num_env_steps", "runner.max_wall_time", "runner.seed")


@dataclass(frozen=True)
class SweepCfg:
    """Keys in a SPACE.yaml."""

    space: dict[str, Any] = option(dict, f"settings that vary, section.key: {_FORMS}")
    preset: str | None = option(None, "preset or run file of the varied run; null: laptop")
    settings: dict[str, Any] = option(
        dict, "changes of that run for all trials, as sections with keys"
    )
    metric: str = option(
        "mapush/success_rate", "tag of the curve whose last value ranks trials; more is better"
    )
    num_trials: int = option(30, "number of trials, each with one combination of settings", min=1)
    jobs: int | None = option(
        None,
        "number of simultaneous trials; null: one on each GPU, or on each core without a GPU",
        min=1,
        max=1000,
    )
    stopping: bool = option(True, "early end of the worse trials, by successive halving (ASHA)")


class Space(NamedTuple):
    """A checked sweep: its keys, its distributions, and the base run in two forms."""

    cfg: SweepCfg
    distributions: dict[str, BaseDistribution]  # choices are JSON, since Optuna takes no lists
    base: dict[str, Any]
    run: RunCfg

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings behind Optuna's parameters."""
        values = dict(params)
        for key, distribution in self.distributions.items():
            if isinstance(distribution, CategoricalDistribution):
                values[key] = json.loads(params[key])
        return values


def read_space(path: Path, flags: Mapping[str, Any], over: Mapping[str, Any]) -> Space:
    """Read a SPACE.yaml and its run. Raise ConfigError for invalid values.

    ``flags`` replace keys of the file. ``over`` has sections and keys like a run file, and replaces
    the file's ``settings``.
    """
    cfg = build(SweepCfg, {**load_yaml(path), **flags}, "")
    base = config.load_preset(cfg.preset or config.DEFAULT_PRESET)
    config.check_layer(cfg.settings)
    base = merge(merge(base, cfg.settings), over)
    return _check(replace(cfg, preset=None, settings={}), base)


def reread_space(folder: Path, flags: Mapping[str, Any]) -> Space:
    """Read the space and the base run from a sweep's folder. ``flags`` replace keys."""
    cfg = build(SweepCfg, {**load_yaml(folder / SWEEP), **flags}, "")
    return _check(cfg, load_yaml(folder / SETTINGS))


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Format settings by dotted name as arguments of ``--set``."""
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def settings_of(
    base: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[RunCfg, dict[str, Any]]:
    """Return a run with some settings changed, as built and as nested values."""
    over = config.flag_values(argparse.Namespace(set=assignments(values)))
    return config.resolve(base, over)[0], merge(base, over)


def _check(cfg: SweepCfg, base: dict[str, Any]) -> Space:
    run, _ = config.resolve(base, {})
    if not cfg.space:
        raise ConfigError(
            f"space: names no setting that varies; name at least one, section.key: {_FORMS}"
        )
    distributions = {key: _distribution(key, given, base) for key, given in cfg.space.items()}
    return Space(cfg, distributions, base, run)


def _distribution(key: str, given: Any, base: dict[str, Any]) -> BaseDistribution:
    """Return a setting's distribution. Raise ConfigError for an invalid value."""
    if key.startswith(_FIXED) or "." not in key:
        raise ConfigError(f"space.{key}: cannot vary; name another setting, section.key")
    kind = "list"
    values = given
    if isinstance(given, Mapping) and len(given) == 1:
        ((kind, values),) = given.items()
    is_interval = kind in ("range", "log")
    if not isinstance(values, (list, tuple)) or len(values) < 1 + is_interval:
        raise ConfigError(f"space.{key}: must be {_FORMS}, not {given!r}")

    try:
        runs = [settings_of(base, {key: value})[0] for value in values]
        if kind == "list":
            return CategoricalDistribution([json.dumps(value) for value in values])
        is_whole = type(flatten(to_dict(runs[0]))[key]) is int
        make = IntDistribution if is_whole else FloatDistribution
        low, high = values
        return make(low, high, log={"range": False, "log": True}[kind])
    except (ConfigError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"space.{key}: {error}; must be {_FORMS}") from None
