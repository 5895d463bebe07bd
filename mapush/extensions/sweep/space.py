"""SPACE.yaml: a run, its varied settings, and the metric for the ranking."""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.runs import checkpoint, run_folder
from mqe.config import (
    ConfigError,
    build,
    flatten,
    load_yaml,
    merge,
    option,
    to_dict,
    unknown,
)
from mqe.registry import SimCfg, make_env

DEFAULT_TRIALS = 30
_FORMS = "a list of values, {range: [low, high]} or {log: [low, high]}"
# Settings that cannot vary, and the reason.
_FIXED = {
    "sim.python": "a file of settings starts no program",
    "runner.seed": "list the seeds under seeds: [...]",
    "runner.num_env_steps": "all trials have the same budget; set it under settings",
    "runner.max_wall_time": "trials with a time limit cannot be compared; leave it out",
    "sim.device": "the sweep assigns the devices; set it for all trials under settings",
}


@dataclass(frozen=True)
class StoppingCfg:
    """ASHA: a trial continues past a rung only if it is among the best ``1 / keep`` so far."""

    first: int | None = option(
        None,
        "length of a trial up to the first rung, in env steps; null: "
        "runner.num_env_steps / stopping.keep^2",
        min=1,
    )
    keep: int = option(
        3,
        "ratio between the env steps of successive rungs; a fraction 1 / "
        "keep of the trials continues past each rung",
        min=2,
    )


@dataclass(frozen=True)
class SweepCfg:
    """Keys in a SPACE.yaml."""

    space: dict[str, Any] = option(dict, f"settings that vary, section.key: {_FORMS}")
    preset: str | None = option(
        None, "preset of the run that is varied; null, without config: laptop"
    )
    config: str | None = option(None, "run file of the run that is varied")
    settings: dict[str, Any] = option(
        dict, "changes of that run for all trials, as sections with keys"
    )
    metric: str = option("mapush/success_rate", "tag of the curve whose last value ranks trials")
    mode: str = option(
        "max",
        "better direction of the metric: max (larger) or min (smaller)",
        choices=("max", "min"),
    )
    search: str = option(
        "optuna",
        "search method: optuna (TPE sampler), random (random sampling) or grid (every combination)",
        choices=("optuna", "random", "grid"),
    )
    num_trials: int | None = option(
        None,
        f"number of trials, each with one combination of settings; null: {DEFAULT_TRIALS}",
        min=1,
        max=100_000,
    )
    seeds: tuple[int, ...] = option(
        (), "seeds of every point of a grid, or of the best settings of a search", min=0
    )
    confirm: int = option(
        3,
        "number of best combinations of settings to train again with each seed",
        min=0,
        max=1000,
    )
    stopping: StoppingCfg | None = option(
        StoppingCfg, "early stopping by ASHA; null: every trial has its whole budget"
    )


class Space(NamedTuple):
    """A checked sweep: its keys, its distributions, and the base run in two forms."""

    cfg: SweepCfg
    distributions: dict[str, BaseDistribution]  # choices are JSON, since Optuna takes no lists
    base: dict[str, Any]
    run: RunCfg

    @property
    def num_trials(self) -> int:
        """Number of trials, without repetitions with other seeds."""
        if self.cfg.search == "grid":
            return len(self.grid()) * len(self.grid_seeds)
        return self.cfg.num_trials or DEFAULT_TRIALS

    @property
    def grid_seeds(self) -> tuple[int, ...]:
        """Seeds for every point in a grid."""
        return self.cfg.seeds or (self.run.runner.seed,)

    def grid(self) -> list[dict[str, Any]]:
        """Return all combinations. The last setting varies fastest."""
        choices = [
            getattr(distribution, "choices", ()) for distribution in self.distributions.values()
        ]
        combinations = itertools.product(*choices)
        return [dict(zip(self.distributions, values, strict=True)) for values in combinations]

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings behind Optuna's parameters."""
        values = {}
        for key, distribution in self.distributions.items():
            is_choice = isinstance(distribution, CategoricalDistribution)
            values[key] = json.loads(params[key]) if is_choice else params[key]
        return values


def read_space(
    path: Path, num_trials: int | None = None, over: Mapping[str, Any] = MappingProxyType({})
) -> Space:
    """Read a SPACE.yaml and its run. Raise ConfigError for invalid values.

    ``over`` has sections and keys like a run file, and replaces the file's own ``settings``.
    """
    cfg = _build(load_yaml(path), num_trials)
    if cfg.preset is not None and cfg.config is not None:
        raise ConfigError(
            f"{path}: config and preset both name the run that is varied; leave one out"
        )
    if cfg.config:
        run_folder.check_settings(cfg.config)
        base = config.load_file(cfg.config)
    else:
        base = config.load_preset(cfg.preset or config.DEFAULT_PRESET)
    config.check_layer(cfg.settings)
    base = merge(merge(base, cfg.settings), over)
    return _check(replace(cfg, preset=None, config=None, settings={}), base)


def reread_space(sweep: Path, settings: Path, num_trials: int | None = None) -> Space:
    """Read the space and the base run from a sweep's folder."""
    return _check(_build(load_yaml(sweep), num_trials), load_yaml(settings))


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Format settings by dotted name as arguments of ``--set``."""
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def settings_of(
    base: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[RunCfg, dict[str, Any]]:
    """Return a run with some settings changed, as built and as nested values."""
    over = config.flag_values(argparse.Namespace(set=assignments(values)))
    return config.resolve(base, over)[0], merge(base, over)


def _build(values: dict[str, Any], num_trials: int | None) -> SweepCfg:
    if values.get("search") == "grid":
        values = {"stopping": None, **values}  # by default, a grid trains all its points in full
    cfg = build(SweepCfg, values, "")
    if num_trials is not None:
        checked = build(SweepCfg, {"num_trials": num_trials}, "--num_trials")
        cfg = replace(cfg, num_trials=checked.num_trials)
    if cfg.search == "grid" and cfg.num_trials is not None:
        raise ConfigError(
            "num_trials: a grid has as many trials as it has points and seeds; leave it out"
        )
    return cfg


def _check(cfg: SweepCfg, base: dict[str, Any]) -> Space:
    run, _ = config.resolve(base, {})
    _check_start(run)
    if not cfg.space:
        raise ConfigError(
            f"space: names no setting that varies; name at least one, section.key: {_FORMS}"
        )
    distributions = {key: _distribution(key, given, base) for key, given in cfg.space.items()}
    space = Space(cfg, distributions, base, run)
    if len(set(cfg.seeds)) < len(cfg.seeds):
        raise ConfigError(f"seeds: has a seed twice; name each once, not {list(cfg.seeds)}")
    if cfg.search == "grid":
        for key, distribution in distributions.items():
            if not isinstance(distribution, CategoricalDistribution):
                raise ConfigError(f"space.{key}: a grid needs a list of values, not an interval")
        for point in space.grid():
            settings_of(base, space.values(point))  # raises for values that exclude each other
    elif run.runner.seed in cfg.seeds:
        raise ConfigError(
            f"seeds: {run.runner.seed} is the seed that the search itself trains with "
            "(runner.seed), so that its result is biased for the best settings; name others"
        )
    tags = metric_tags(run)
    if cfg.metric not in tags:
        raise ConfigError(f"metric: {unknown('metric', cfg.metric, tags)}")
    return space


def _distribution(key: str, given: Any, base: dict[str, Any]) -> BaseDistribution:
    """Return a setting's distribution. Raise ConfigError for an invalid value."""
    section, dot, _ = str(key).partition(".")
    if not dot:
        raise ConfigError(f"space.{key}: cannot vary; must have the form section.key")
    if section == "logger":
        raise ConfigError(f"space.{key}: cannot vary; the sweep sets names and logs of its runs")
    if key in _FIXED:
        raise ConfigError(f"space.{key}: cannot vary; {_FIXED[key]}")
    if isinstance(given, (list, tuple)) and given:
        if any(value in given[:i] for i, value in enumerate(given)):
            raise ConfigError(f"space.{key}: has a value twice; name each once, not {given!r}")
        for value in given:
            _check_value(key, value, base)
        return CategoricalDistribution([json.dumps(value) for value in given])
    if not isinstance(given, Mapping) or len(given) != 1 or not {*given} & {"range", "log"}:
        raise ConfigError(f"space.{key}: must be {_FORMS}, not {given!r}")

    kind, ends = next(iter(given.items()))
    low, high = _ends(key, kind, ends)
    run = _check_value(key, low, base)
    _check_value(key, high, base)
    is_log = kind == "log"
    if type(flatten(to_dict(run)).get(key)) is not int:
        return FloatDistribution(float(low), float(high), log=is_log)
    if not isinstance(low, int) or not isinstance(high, int):
        raise ConfigError(f"space.{key}: takes whole numbers, so both ends must be, not {ends!r}")
    return IntDistribution(low, high, log=is_log)


def _check_value(key: str, value: Any, base: dict[str, Any]) -> RunCfg:
    """Return the run with one setting changed. Raise ConfigError for an invalid value."""
    try:
        run, _ = settings_of(base, {key: value})
        _check_start(run)
    except ConfigError as error:
        raise ConfigError(f"space.{key}: {error}") from None
    return run


def _check_start(run: RunCfg) -> None:
    """Raise ConfigError if a run starts from a missing checkpoint."""
    if run.runner.init_from is not None:
        try:
            checkpoint.resolve(run.runner.init_from)
        except ConfigError as error:
            raise ConfigError(f"runner.init_from: {error}") from None


def _ends(key: str, kind: str, ends: Any) -> tuple[Any, Any]:
    """Return an interval's ends."""
    is_pair = isinstance(ends, (list, tuple)) and len(ends) == 2
    if not is_pair or any(type(end) not in (int, float) for end in ends):
        raise ConfigError(f"space.{key}: {kind}: must be two numbers, [low, high], not {ends!r}")
    low, high = ends
    if not low < high:
        raise ConfigError(
            f"space.{key}: {kind}: the first number must be below the second, not {ends!r}"
        )
    if kind == "log" and low <= 0:
        raise ConfigError(f"space.{key}: log: needs numbers above 0, not {ends!r}; use range")
    return low, high


def metric_tags(run: RunCfg) -> list[str]:
    """Return the tags for a ranking: episodes, rewards and evaluations."""
    with torch.random.fork_rng():
        env = make_env(
            replace(run.env, num_envs=1), SimCfg("mujoco", "cpu", 1), run.task, run.runner.seed
        )
    try:
        env.reset()
        actions = torch.zeros((1, env.num_agents, env.spec.action_size))
        rewards = [name for name in env.step(actions).info if name.startswith("reward/")]
        names = [name for name in env.statistics() if name != "num_episodes"]
    finally:
        env.close()

    tags = []
    for name in names:
        per_agent = re.fullmatch(r"(\w+)_(agent\d+)", name)
        tags.append(f"{per_agent[2]}/{per_agent[1]}" if per_agent else f"mapush/{name}")
    tags += [*rewards, "reward/total"]
    if run.runner.evaluation_interval is not None:
        tags += [f"eval/{name}" for name in names]
    return tags
