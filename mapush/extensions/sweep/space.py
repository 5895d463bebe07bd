"""SPACE.yaml: the run that is varied, the settings that vary, and the metric of the trials."""

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

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.runs import checkpoint, run_folder
from mqe.config import (
    ConfigError,
    build,
    load_yaml,
    merge,
    option,
    to_dict,
    unknown,
)
from mqe.registry import SimCfg, make_env
from mqe.world.scene import STEP_DT

SEARCHES = ("optuna", "random", "grid")
_DEFAULT_TRIALS = 30
_KINDS = ("range", "log")  # intervals, uniform in the number or in its logarithm
_FORMS = "a list of values, {range: [low, high]} or {log: [low, high]}"
# Settings that cannot vary, with hints for the user.
_OWN = {
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
        "env steps of the first rung; null: runner.num_env_steps / keep^2, or / keep if the metric "
        "has no value before",
        min=1,
    )
    keep: int = option(
        3,
        "factor between rungs; one trial in this many continues past each",
        min=2,
    )


@dataclass(frozen=True)
class SweepCfg:
    """The keys of a SPACE.yaml."""

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
        "max", "direction of a better metric, larger or smaller", choices=("max", "min")
    )
    search: str = option("optuna", "method that chooses the settings", choices=SEARCHES)
    num_trials: int | None = option(
        None,
        f"number of settings that the search tries; null: {_DEFAULT_TRIALS}",
        min=1,
        max=100_000,
    )
    seeds: tuple[int, ...] = option(
        (), "seeds of every point of a grid, or of the best settings of a search", min=0
    )
    confirm: int = option(
        3,
        "number of best settings of a search that are trained again with each of the seeds",
        min=0,
        max=1000,
    )
    stopping: StoppingCfg | None = option(
        StoppingCfg, "early stopping by ASHA; null: every trial has its whole budget"
    )


class Parameter(NamedTuple):
    """One setting that varies: one of ``choices``, or a number from ``low`` to ``high``."""

    key: str
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the interval has whole numbers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def samples(self) -> tuple[Any, ...]:
        """Return all choices, or both ends of the interval."""
        return self.choices or (self.low, self.high)


class Space(NamedTuple):
    """A checked sweep: its keys, its parameters, and the base run as nested values and as built."""

    cfg: SweepCfg
    parameters: tuple[Parameter, ...]
    base: dict[str, Any]
    run: RunCfg

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the first stage: the grid's own, or for a search the seed of its run."""
        if self.cfg.search == "grid" and self.cfg.seeds:
            return self.cfg.seeds
        return (self.run.runner.seed,)

    @property
    def num_settings(self) -> int:
        """Number of settings in the first stage."""
        if self.cfg.search == "grid":
            return len(self.grid())
        return self.cfg.num_trials or _DEFAULT_TRIALS

    @property
    def first_rung(self) -> int | None:
        """Env steps of the first rung, which every trial gets; None: no trial is stopped early.

        By default the budget itself is where the next rung would be, so that no trial is stopped
        shortly before its end.
        """
        stopping = self.cfg.stopping
        if stopping is None:
            return None
        if stopping.first is not None:
            return stopping.first
        budget = self.run.runner.num_env_steps
        rungs = (budget // stopping.keep**power + 1 for power in (2, 1))
        known = steps_before_episodes(self.run, self.cfg.metric)
        return next((rung for rung in rungs if known < rung < budget), None)

    def grid(self) -> list[dict[str, Any]]:
        """Return all combinations of the choices; the last parameter varies fastest."""
        keys = [parameter.key for parameter in self.parameters]
        combinations = itertools.product(*(parameter.choices for parameter in self.parameters))
        return [dict(zip(keys, values, strict=True)) for values in combinations]

    def budget(self) -> str:
        """Format the largest possible number of trials and env steps."""
        num_trials = self.num_settings * len(self.seeds)
        text = f"{num_trials} trials"
        if self.cfg.search != "grid":
            num_confirming = min(self.cfg.confirm, self.num_settings) * len(self.cfg.seeds)
            num_trials += num_confirming
            if num_confirming:
                text += f" and {num_confirming} with other seeds"
        env_steps = num_trials * self.run.runner.num_env_steps
        text += f", at most {env_steps:,} env steps in all"
        if self.cfg.stopping is not None and self.first_rung is None:
            text += f"; none is stopped early, {self.cfg.metric} has no value in time"
        return text


def read_space(
    path: Path, num_trials: int | None = None, over: Mapping[str, Any] = MappingProxyType({})
) -> Space:
    """Read a SPACE.yaml and the run that it varies; raise ConfigError for invalid values.

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
    """Read the space and the base run from the folder of a sweep."""
    return _check(_build(load_yaml(sweep), num_trials), load_yaml(settings))


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Format settings by dotted name as arguments of ``--set``."""
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def settings_of(
    base: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[RunCfg, dict[str, Any]]:
    """Return a run with some settings changed, as it is built and as nested values."""
    over = config.flag_values(argparse.Namespace(set=assignments(values)))
    return config.resolve(base, over)[0], merge(base, over)


def _build(values: dict[str, Any], num_trials: int | None) -> SweepCfg:
    if values.get("search") == "grid":
        values = {"stopping": None, **values}  # by default, a grid trains all its points in full
    cfg = build(SweepCfg, values, "")
    if num_trials is not None:
        cfg = replace(
            cfg, num_trials=build(SweepCfg, {"num_trials": num_trials}, "--num_trials").num_trials
        )
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
    _check_budget(run, cfg.metric)
    parameters = tuple(_parameter(key, given, base, cfg.metric) for key, given in cfg.space.items())
    space = Space(cfg, parameters, base, run)

    _check_seeds(space)
    if cfg.stopping is not None and cfg.stopping.first is not None:
        _check_first_rung(cfg.stopping.first, run, cfg.metric)
    if cfg.search == "grid":
        for parameter in parameters:
            if not parameter.choices:
                raise ConfigError(
                    f"space.{parameter.key}: a grid needs a list of values, not an interval"
                )
        for point in space.grid():
            settings_of(base, point)  # raises for values that exclude each other
    tags = metric_tags(run)
    if cfg.metric not in tags:
        raise ConfigError(f"metric: {unknown('metric', cfg.metric, tags)}")
    return space


def _parameter(key: str, given: Any, base: dict[str, Any], metric: str) -> Parameter:
    """Return one setting that varies; raise ConfigError if a value of it is invalid."""
    section, dot, _ = str(key).partition(".")
    if not dot:
        raise ConfigError(f"space.{key}: cannot vary; must have the form section.key")
    if section == "logger":
        raise ConfigError(f"space.{key}: cannot vary; the sweep sets names and logs of its runs")
    if key in _OWN:
        raise ConfigError(f"space.{key}: cannot vary; {_OWN[key]}")

    if isinstance(given, Mapping) and len(given) == 1 and next(iter(given)) in _KINDS:
        (kind, ends), *_ = given.items()
        parameter = _interval(key, kind, ends)
    elif isinstance(given, (list, tuple)) and given:
        if any(value in given[:i] for i, value in enumerate(given)):
            raise ConfigError(f"space.{key}: has a value twice; name each once, not {given!r}")
        parameter = Parameter(key, tuple(given))
    else:
        raise ConfigError(f"space.{key}: must be {_FORMS}, not {given!r}")

    for value in parameter.samples():
        try:
            run, _ = settings_of(base, {key: value})
            _check_start(run)
            _check_budget(run, metric)
        except ConfigError as error:
            raise ConfigError(f"space.{key}: {error}") from None
    is_int = type(_value(to_dict(run), key)) is int
    if not parameter.choices and is_int != parameter.is_whole:
        if is_int:
            raise ConfigError(
                f"space.{key}: takes whole numbers, so both ends must be, not {given!r}"
            )
        parameter = parameter._replace(low=float(parameter.low), high=float(parameter.high))
    return parameter


def _check_start(run: RunCfg) -> None:
    """Raise ConfigError if the checkpoint that a run starts from does not exist."""
    if run.runner.init_from is not None:
        try:
            checkpoint.resolve(run.runner.init_from)
        except ConfigError as error:
            raise ConfigError(f"runner.init_from: {error}") from None


def steps_before_episodes(run: RunCfg, metric: str) -> int:
    """Return the env steps after which a metric of episodes has a value; 0 for other metrics.

    With a staggered start episodes count after the time limit has passed once.
    """
    # A task of the user's own may have no such setting.
    length_s = getattr(run.task, "episode_length_s", None)
    is_of_episodes = re.match(r"mapush/|agent\d+/", metric) is not None
    if length_s is None or not is_of_episodes or not run.runner.staggered_start:
        return 0
    return run.env.num_envs * round(length_s / STEP_DT)


def _check_budget(run: RunCfg, metric: str) -> None:
    """Raise ConfigError if a trial ends before its first episodes count."""
    needed = steps_before_episodes(run, metric)
    budget = run.runner.num_env_steps
    if budget < needed:
        length_s = needed // run.env.num_envs * STEP_DT
        raise ConfigError(
            f"runner.num_env_steps {budget}: no episode counts within this budget, so {metric} has "
            f"no value: {run.env.num_envs} worlds with a time limit of {length_s:g} s take "
            f"{needed} env steps before their first; raise it, or lower env.num_envs"
        )


def _check_first_rung(first: int, run: RunCfg, metric: str) -> None:
    """Raise ConfigError if trials would be compared before their metric has a value, or never."""
    known = steps_before_episodes(run, metric)
    budget = run.runner.num_env_steps
    if not known < first < budget:
        raise ConfigError(
            f"stopping.first: must be below runner.num_env_steps {budget}, and above {known} for "
            f"{metric} to have a value, not {first}; or set stopping: null"
        )


def _interval(key: str, kind: str, ends: Any) -> Parameter:
    is_pair = isinstance(ends, (list, tuple)) and len(ends) == 2
    if not is_pair or not all(_is_number(end) for end in ends):
        raise ConfigError(f"space.{key}: {kind}: must be two numbers, [low, high], not {ends!r}")
    low, high = ends
    if not low < high:
        raise ConfigError(
            f"space.{key}: {kind}: the first number must be below the second, not {ends!r}"
        )
    if kind == "log" and low <= 0:
        raise ConfigError(f"space.{key}: log: needs numbers above 0, not {ends!r}; use range")
    return Parameter(key, low=low, high=high, is_log=kind == "log")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _value(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _check_seeds(space: Space) -> None:
    seeds = space.cfg.seeds
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds: has a seed twice; name each once, not {list(seeds)}")
    if space.cfg.search != "grid" and space.run.runner.seed in seeds:
        raise ConfigError(
            f"seeds: {space.run.runner.seed} is the seed that the search itself trains with "
            "(runner.seed), so that its result is biased for the best settings; name others"
        )


def metric_tags(run: RunCfg) -> list[str]:
    """Return the tags of a run's curves that can rank trials: episodes, rewards, evaluations."""
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
