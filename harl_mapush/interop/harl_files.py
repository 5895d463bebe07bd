"""Upstream HARL's files: its configurations as run settings, its ``models/`` folders as
checkpoints.

Nothing here executes what it reads: JSON, YAML by the safe loader, tensors without pickled code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.clients.mapush_env import TEAM_REWARD, long_key, parse_settings, team_reward_of
from harl_mapush.config import DEFAULT_TASK, SECTIONS, LoggerCfg, RunnerCfg
from harl_mapush.interop.harl_settings import (
    ALGORITHM_KEYS,
    NETWORK_KEYS,
    algorithm_cfg,
    as_count,
    as_switch,
    build_from_harl,
    check_length,
    dotted,
    is_read,
    learning_settings,
    network_cfg,
)
from harl_mapush.learning.settings import NetworkCfg, OnPolicyCfg
from mqe.config import ConfigError, merge, parse_yaml, to_dict, unknown
from mqe.registry import TASKS, EnvCfg, SimCfg

ENV_NAME = "mapush"
CONFIG = "config.json"
MODELS = "models"
DISCRETE_ONLY = ("had3qn",)
UPSTREAM_ONLY = ("haddpg", "hatd3", "hasac", "had3qn", "maddpg", "matd3")

# What upstream's YAML files of the on-policy algorithms say where a file says nothing.
DEFAULTS: dict[str, dict[str, Any]] = {
    "seed": {"seed_specify": True, "seed": 1},
    "device": {"cuda": True, "torch_threads": 4},
    "train": {
        "n_rollout_threads": 20,
        "num_env_steps": 10_000_000,
        "episode_length": 200,
        "log_interval": 5,
        "eval_interval": 25,
        "use_valuenorm": True,
        "use_linear_lr_decay": False,
        "use_proper_time_limits": True,
        "model_dir": None,
    },
    "eval": {
        "use_eval": False,
        "n_eval_rollout_threads": 10,
        "eval_episodes": 20,
    },  # upstream's use_eval is True
    "render": {"use_render": False},
    "model": {
        "hidden_sizes": [128, 128],
        "activation_func": "relu",
        "use_feature_normalization": True,
        "initialization_method": "orthogonal_",
        "gain": 0.01,
        "use_naive_recurrent_policy": False,
        "use_recurrent_policy": False,
        "recurrent_n": 1,
        "data_chunk_length": 10,
        "lr": 5e-4,
        "critic_lr": 5e-4,
        "opti_eps": 1e-5,
        "weight_decay": 0.0,
        "std_x_coef": 1.0,
        "std_y_coef": 0.5,
    },
    "algo": {
        "critic_epoch": 5,
        "use_clipped_value_loss": True,
        "clip_param": 0.2,
        "actor_num_mini_batch": 1,
        "critic_num_mini_batch": 1,
        "entropy_coef": 0.01,
        "value_loss_coef": 1.0,
        "use_max_grad_norm": True,
        "max_grad_norm": 10.0,
        "use_gae": True,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "use_huber_loss": True,
        "use_policy_active_masks": True,
        "huber_delta": 10.0,
        "action_aggregation": "prod",
    },
    "logger": {"log_dir": "./results"},
}

# In env_args, and by what.
_OVERRULED = {
    "env.num_envs": "train.n_rollout_threads",
    "runner.seed": "seed.seed",
}
_HONOURED = {  # besides those of harl_settings
    *(
        "seed.seed",
        "device.cuda",
        "device.torch_threads",
        "render.render_episodes",
        "train.n_rollout_threads",
    ),
    *("train.num_env_steps", "train.episode_length", "train.log_interval", "train.eval_interval"),
    *(
        "train.use_linear_lr_decay",
        "model.use_naive_recurrent_policy",
        "model.use_recurrent_policy",
    ),
    *(
        "algo.use_max_grad_norm",
        "eval.use_eval",
        "eval.n_eval_rollout_threads",
        "eval.eval_episodes",
    ),
}
_WITHOUT_EFFECT_IF = {  # values that ask for nothing
    "seed.seed_specify": True,
    "train.model_dir": None,
    "render.use_render": False,
}
_REASONS = {
    "seed.seed_specify": "seed.seed is taken",
    "train.model_dir": "training starts from new networks",
    "render.use_render": "harl_mapush.test --mode viewer films",
    "device.cuda_deterministic": "a GPU's sums are not bit-equal from run to run",
    "logger.log_dir": "--out names the run folder",
}
_OUR_SECTIONS = {*SECTIONS, "base"} - set(DEFAULTS)


class HarlFile(NamedTuple):
    """A configuration of HARL: which algorithm and environment it names, and their settings."""

    path: Path
    algo: str | None
    env: str | None
    algo_args: dict[str, dict[str, Any]]
    env_args: dict[str, Any]


def read(path: str | Path) -> HarlFile:
    """Read a ``config.json`` of HARL, or YAML with its sections; raise ConfigError for any other
    file.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError(
            f"HARL's file {str(path)!r}: cannot be read ({reason}); check the path"
        ) from None
    try:
        content = json.loads(text) if text.lstrip().startswith("{") else parse_yaml(text, str(path))
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:  # ValueError: also a number of too many digits
        raise ConfigError(f"HARL's file {str(path)!r}: not valid JSON ({error})") from None
    content = content if isinstance(content, dict) else {}
    main = content.get("main_args") or {}
    named = {key: value for key, value in content.items() if key not in ("main_args", "env_args")}
    algo_args = content.get("algo_args", named)
    env_args = content.get("env_args") or {}
    parts = (
        main,
        algo_args,
        env_args,
        *(algo_args.values() if isinstance(algo_args, dict) else ()),
    )
    if not all(isinstance(part, dict) for part in parts) or not set(algo_args) & {
        "train",
        "model",
        "algo",
    }:
        hint = "; a run file of ours goes in by --config" if set(content) & _OUR_SECTIONS else ""
        raise ConfigError(
            f"HARL's file {str(path)!r}: not a configuration of HARL; it needs main_args, "
            "algo_args and env_args, or "
            f"at the top the sections {', '.join(DEFAULTS)}{hint}"
        )
    algo = main.get("algo") if isinstance(main.get("algo"), str) else None
    algo = algo or (path.stem if path.stem in (*ALGORITHMS, *UPSTREAM_ONLY) else None)
    return HarlFile(path, algo, main.get("env"), algo_args, env_args)


def apply(
    base: Mapping[str, Any], over: Mapping[str, Any], file: HarlFile
) -> tuple[dict[str, Any], list[str]]:
    """Put HARL's settings on a run's ``base``; return the result, and a line that names the
    settings that are ignored.

    ``over`` is what the command line will put on top: it chooses the algorithm, and how many
    control steps a decision has, for HARL counts decisions. Networks and algorithm are HARL's
    altogether, under ``algorithm.compat=harl``.
    """
    with _named(file):
        base, notices = _apply(base, over, file)
        if "num_env_steps" not in (over.get("runner") or {}):
            train = merge(DEFAULTS, file.algo_args)["train"]
            check_length(train, train["episode_length"])
        return base, notices


def _apply(
    base: Mapping[str, Any], over: Mapping[str, Any], file: HarlFile
) -> tuple[dict[str, Any], list[str]]:
    algo = (over.get("algorithm") or {}).get("name") or file.algo
    if algo is None:
        raise ConfigError("does not say which algorithm; add --algo")
    if algo in DISCRETE_ONLY:
        raise ConfigError(
            f"{algo} acts in discrete spaces only, and robots here do not; take "
            f"{', '.join(ALGORITHMS)}"
        )
    if (
        isinstance(algo, str)
        and algo in ALGORITHMS
        and not issubclass(ALGORITHMS[algo].cfg, OnPolicyCfg)
    ):
        raise ConfigError(
            f"settings of {algo} are not read from HARL's files; leave --load_config out (--algo "
            f"{algo}), or train by "
            "upstream: python -m harl_mapush.clients.run_harl"
        )
    if algo in UPSTREAM_ONLY:
        raise ConfigError(
            f"{algo} is trained by upstream alone, python -m harl_mapush.clients.run_harl; here: "
            f"{', '.join(ALGORITHMS)}"
        )
    if not isinstance(algo, str) or algo not in ALGORITHMS:
        raise ConfigError(unknown("algorithm", algo, ALGORITHMS))
    values = merge(DEFAULTS, file.algo_args)
    environment, foreign_keys = _environment(file)
    task = merge(merge(base, environment), over).get("task") or {}
    team_reward = team_reward_of(
        file.env_args if file.env == ENV_NAME else {}, task.get("state_type") or "EP"
    )
    period = task.get("decision_period") or 1
    sections = merge(_run(values, period if isinstance(period, int) else 1), environment)
    build_from_harl(
        OnPolicyCfg,
        {TEAM_REWARD: team_reward},
        "algorithm",
        {f"env_args.{TEAM_REWARD}": TEAM_REWARD},
    )
    flat = learning_settings(values)
    algorithm = to_dict(algorithm_cfg(algo, flat)) | {TEAM_REWARD: team_reward}
    network = network_cfg(flat)
    changed = {*(over.get("runner") or {}), *(over.get("network") or {})}
    if not changed & {"num_steps", "chunk_length", "use_recurrent_policy"}:
        _check_chunks(network, sections["runner"]["num_steps"])
    learning = {"network": to_dict(network), "algorithm": algorithm}
    named = [
        f"{key} ({reason})" if reason else key
        for key, reason in (_ignored(file, values, algo) | foreign_keys).items()
    ]
    notices = [f"{file.path}: not honoured: {'; '.join(named)}"] if named else []
    return merge({**base, "network": {}, "algorithm": {}}, sections | learning), notices


@contextmanager
def _named(file: HarlFile) -> Iterator[None]:
    """Let complaints begin with the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"HARL's file {str(file.path)!r}: {error}") from None


def _check_chunks(network: NetworkCfg, num_steps: int) -> None:
    length = network.chunk_length or num_steps
    if network.use_recurrent_policy and num_steps % length:
        raise ConfigError(
            f"train.episode_length: must be a multiple of model.data_chunk_length ({length}) where "
            f"use_recurrent_policy is true, not {num_steps}; change one of them there, or here "
            "by --set "
            f"network.chunk_length={math.gcd(num_steps, length)}"
        )


def _run(values: Mapping[str, Any], decision_period: int) -> dict[str, Any]:
    """Return the sections env, sim, runner and logger that HARL's seed, device, train and logger
    amount to.
    """
    train = values["train"]
    device = values["device"]
    runner = {"seed": values["seed"]["seed"], "torch_threads": device["torch_threads"]}
    build_from_harl(
        RunnerCfg, runner, "runner", {"seed.seed": "seed", "device.torch_threads": "torch_threads"}
    )
    logger = {"interval": train["log_interval"]}
    build_from_harl(LoggerCfg, logger, "logger", {"train.log_interval": "interval"})
    counts = {
        name: as_count(train[name], f"train.{name}")
        for name in ("n_rollout_threads", "episode_length")
    }
    decisions = counts["n_rollout_threads"] * counts["episode_length"]
    num_iterations = as_count(train["num_env_steps"], "train.num_env_steps") // decisions
    eval_interval = (
        as_count(train["eval_interval"], "train.eval_interval") * decisions * decision_period
    )
    return {
        "env": {"num_envs": counts["n_rollout_threads"]},
        "sim": {"device": "auto" if as_switch(device["cuda"], "device.cuda") else "cpu"},
        "runner": {
            **runner,
            "num_steps": counts["episode_length"],
            "num_env_steps": max(1, num_iterations) * decisions * decision_period,
            "checkpoint_interval": eval_interval,  # upstream saves when it evaluates
            **_evaluation(values["eval"], eval_interval),
            "staggered_start": False,  # upstream's workers start together
        },
        "logger": logger,
    }


def _evaluation(harl: Mapping[str, Any], interval: int) -> dict[str, Any]:
    """Return the runner's settings of evaluation while training; none where it is off."""
    if not as_switch(harl["use_eval"], "eval.use_eval"):
        return {}
    keys = {"n_eval_rollout_threads": "evaluation_envs", "eval_episodes": "evaluation_episodes"}
    values = {ours: as_count(harl[theirs], f"eval.{theirs}") for theirs, ours in keys.items()}
    build_from_harl(
        RunnerCfg, values, "runner", {f"eval.{theirs}": ours for theirs, ours in keys.items()}
    )
    return {"evaluation_interval": interval, **values}


def _environment(file: HarlFile) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the sections that ``env_args`` amount to, and the keys that have no effect here, with
    the reason.
    """
    given = {key: value for key, value in file.env_args.items() if value is not None}
    if file.env != ENV_NAME:
        known = {"state_type"} & set(given)
        where = f"of environment {file.env or 'unknown'}"
    else:
        classes = _environment_classes(given)
        names = {
            f"{section}.{field.name}" for section, cls in classes.items() for field in fields(cls)
        }
        known = {key for key in given if long_key(key) in {*names, *_OVERRULED}}
        where = "unknown here"
        given.pop(TEAM_REWARD, None)  # the algorithm's here
    reasons = {f"env_args.{key}": where for key in given if key not in known}
    settings = {key: value for key, value in given.items() if key in known}
    for key in [key for key in settings if long_key(key) in _OVERRULED]:
        section, name = _OVERRULED[long_key(key)].split(".")
        if settings.pop(key) != merge(DEFAULTS, file.algo_args)[section][name]:
            reasons[f"env_args.{key}"] = f"{section}.{name} is taken"
    if file.env == ENV_NAME:
        _check_settings(settings, classes)
    return parse_settings(settings), reasons


def _environment_classes(settings: Mapping[str, Any]) -> dict[str, type]:
    """Return the classes of the sections of a mapush environment; raise ConfigError for a task
    that does not exist.
    """
    key = "task.name" if "task.name" in settings else "task"
    task = settings.get(key, DEFAULT_TASK)
    if task not in list(TASKS):
        raise ConfigError(f"env_args.{key}: {unknown('task', task, TASKS)}")
    return {"env": EnvCfg, "sim": SimCfg, "task": TASKS[task].cfg}


def _check_settings(settings: Mapping[str, Any], classes: Mapping[str, type]) -> None:
    """Raise ConfigError, naming the key of ``env_args``, for values that cannot be."""
    for section, cls in classes.items():
        keys = [
            (key, name)
            for key in settings
            for of, _, name in [long_key(key).partition(".")]
            if of == section
        ]
        values = {name: settings[key] for key, name in keys}
        build_from_harl(cls, values, section, {f"env_args.{key}": name for key, name in keys})


def _ignored(file: HarlFile, values: Mapping[str, Any], algo: str) -> dict[str, str]:
    """Name the settings of a file that have no effect, and why."""
    given = [
        (section, name, value)
        for section, content in file.algo_args.items()
        for name, value in content.items()
    ]
    keys = [
        f"{section}.{name}"
        for section, name, value in given
        if not _has_effect(section, name, value, values, algo)
    ]
    return {key: _REASONS.get(key, f"unknown to {algo}") for key in keys}


def _has_effect(section: str, name: str, value: Any, values: Mapping[str, Any], algo: str) -> bool:
    """Return whether a key has its effect here, or none upstream."""
    key = f"{section}.{name}"
    if key in _WITHOUT_EFFECT_IF:
        return value == _WITHOUT_EFFECT_IF[key]
    if key == "device.cuda_deterministic":
        return not (value and values["device"]["cuda"])
    if key == "logger.log_dir":
        return Path(str(value)) == Path("results")
    if name in ALGORITHM_KEYS:
        if key != dotted(name) or not is_read(algo, name):
            return False
        settings = {field.name for field in fields(ALGORITHMS[algo].cfg)}
        # Upstream ignores that one.
        return ALGORITHM_KEYS[name] in settings or (algo, name) == (
            "mappo",
            "fixed_order",
        )
    return key in _HONOURED or (section == "model" and name in NETWORK_KEYS)


def config_beside(models: Path) -> Path | None:
    """Return the ``config.json`` of a ``models/`` folder, in it or beside it; None where there is
    none.
    """
    places = (models / CONFIG, models.absolute().parent / CONFIG)
    return next((path for path in places if path.is_file()), None)


def models_config(path: Path, num_agents: int, obs_size: int) -> dict[str, Any]:
    """Return the sections to evaluate ``num_agents`` actors that see ``obs_size`` numbers, trained
    under a config.json.

    Where the configuration does not say what they see, that size does.
    """
    file = read(path)
    with _named(file):
        sections = _environment(file)[0] if file.algo in UPSTREAM_ONLY else _apply({}, {}, file)[0]
    sections = merge({"task": {"name": DEFAULT_TASK}}, sections)
    task = dict(sections["task"])
    if task["name"] == DEFAULT_TASK and "observation" not in task:
        task["observation"] = "reference" if obs_size == 2 + 3 * num_agents else "sincos"
    return merge(sections, {"task": task, "env": {"num_agents": num_agents}})
