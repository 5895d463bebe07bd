"""Upstream HARL's configurations as run settings, and the settings for its ``models/`` folders.

No file can execute code: JSON, YAML by the safe loader, tensors without pickled objects.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.clients.flat_settings import (
    TEAM_REWARD,
    long_key,
    parse_settings,
    plain_keys,
    resolve_settings,
    team_reward_of,
)
from harl_mapush.config import DEFAULT_TASK, SECTIONS, SETTINGS_FILES, SettingsFile
from harl_mapush.config.other_names import NAMES, NOTHING, TRAIN_FLAGS, OtherFlag
from harl_mapush.learning.settings import OnPolicyCfg
from mapush.extensions.harl.harl_settings import (
    ALGORITHM_KEYS,
    KEYS,
    NETWORK_KEYS,
    algorithm_cfg,
    as_count,
    as_switch,
    keys_of,
    learning_settings,
    network_cfg,
)
from mqe.config import (
    ConfigError,
    errors_of,
    merge,
    parse_yaml,
    read_text,
    reason_of,
    to_dict,
    unknown,
)

ENV_NAME = "mapush"
CONFIG = "config.json"
MODELS = "models"
UPSTREAM_ONLY = ("haddpg", "hatd3", "hasac", "had3qn", "maddpg", "matd3")

_HONOURED = frozenset(KEYS["honoured"])
_WITHOUT_EFFECT_IF = KEYS["without_effect_if"]
_OUR_SECTIONS = {*SECTIONS, "base"} - {"logger"}


class HarlFile(NamedTuple):
    """A HARL configuration: its algorithm and environment, and their settings."""

    path: Path
    algo: str | None
    env: str | None
    algo_args: dict[str, dict[str, Any]]
    env_args: dict[str, Any]


def read(path: str | Path) -> HarlFile:
    """Read a HARL ``config.json``, or YAML with its sections. Raise ConfigError for others."""
    path = Path(path)
    try:
        content = parse_yaml(read_text(path), str(path))
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{_name(path)}: cannot be read ({reason_of(error)}); check the path"
        ) from None
    content = content if isinstance(content, dict) else {}
    main = content.get("main_args") or {}
    at_top = {key: value for key, value in content.items() if key not in ("main_args", "env_args")}
    algo_args = content.get("algo_args", at_top)
    env_args = content.get("env_args") or {}

    parts = [main, algo_args, env_args]
    if isinstance(algo_args, dict):
        parts += algo_args.values()
    is_valid = all(isinstance(part, dict) for part in parts)
    if not is_valid or not set(algo_args) & {"train", "model", "algo"}:
        is_ours = bool(set(content) & _OUR_SECTIONS)
        hint = "; a run file of this project is read by --config" if is_ours else ""
        raise ConfigError(
            f"{_name(path)}: not a configuration of HARL; it needs main_args, "
            f"algo_args and env_args, or at the top the sections seed to logger{hint}"
        )

    algo = main.get("algo") if isinstance(main.get("algo"), str) else None
    if not algo and path.stem in (*ALGORITHMS, *UPSTREAM_ONLY):
        algo = path.stem
    return HarlFile(path, algo, main.get("env"), algo_args, env_args)


def _name(path: Path) -> str:
    return f"HARL's file {str(path)!r}"


def apply(
    base: Mapping[str, Any], over: Mapping[str, Any], file: HarlFile
) -> tuple[dict[str, Any], list[str]]:
    """Merge the settings from a HARL file into ``base``. Return the result and notices.

    ``over`` holds the command line's settings. They choose the algorithm, and a decision's control
    steps, since HARL counts decisions. All network and algorithm settings are HARL's, with
    ``algorithm.compat=harl``.
    """
    with errors_of(_name(file.path)):
        algo = (over.get("algorithm") or {}).get("name") or file.algo
        if algo is None:
            raise ConfigError("names no algorithm; add --algo")
        _check_algorithm(algo)
        _check_complete(file, algo)

        values = file.algo_args
        environment, foreign_keys = _environment(file)
        task = merge(merge(base, environment), over).get("task") or {}
        team_reward = team_reward_of(
            file.env_args if file.env == ENV_NAME else {}, task.get("state_type") or "EP"
        )
        period = task.get("decision_period") or 1
        sections = merge(_run(values, period if isinstance(period, int) else 1), environment)
        flat = learning_settings(values)
        algorithm = to_dict(algorithm_cfg(algo, flat)) | {TEAM_REWARD: team_reward}
        network = network_cfg(flat)
        learning = {"network": to_dict(network), "algorithm": algorithm}

        ignored = [*_ignored(file, values, algo), *foreign_keys]
        notices = []
        if ignored:
            notices.append(f"{file.path}: not honoured: {', '.join(ignored)}")
        return merge({**base, "network": {}, "algorithm": {}}, sections | learning), notices


def _check_algorithm(algo: Any) -> None:
    """Raise ConfigError for an algorithm without settings in HARL's files."""
    if not isinstance(algo, str) or algo not in (*ALGORITHMS, *UPSTREAM_ONLY):
        raise ConfigError(unknown("algorithm", algo, ALGORITHMS))
    if algo in UPSTREAM_ONLY or not issubclass(ALGORITHMS[algo].cfg, OnPolicyCfg):
        raise ConfigError(
            f"settings of {algo} are not read from HARL's files; train with upstream, python "
            f"examples/harl_training.py, or leave --load_config out (--algo {'|'.join(ALGORITHMS)})"
        )


def _check_complete(file: HarlFile, algo: str) -> None:
    """Raise ConfigError for a file without a key that has an effect. Upstream writes all of
    them.
    """
    given = {f"{section}.{name}" for section, keys in file.algo_args.items() for name in keys}
    missing = sorted((_HONOURED | keys_of(algo)) - given)
    if missing:
        raise ConfigError(
            f"lacks {', '.join(missing[:3])} ({len(missing)} keys in all); take upstream's whole "
            f"file of {algo}"
        )


def _run(values: Mapping[str, Any], decision_period: int) -> dict[str, Any]:
    """Convert HARL's sections seed, device, train and logger to env, sim, runner and logger."""
    train = values["train"]
    device = values["device"]

    def count(name: str) -> int:
        return as_count(train[name], f"train.{name}")

    num_envs = count("n_rollout_threads")
    num_steps = count("episode_length")
    decisions = num_envs * num_steps
    env_steps = decisions * decision_period  # of a rollout
    return {
        "env": {"num_envs": num_envs},
        "sim": {"device": "auto" if as_switch(device["cuda"], "device.cuda") else "cpu"},
        "runner": {
            "seed": values["seed"]["seed"],
            "torch_threads": device["torch_threads"],
            "num_steps": num_steps,
            "num_env_steps": max(1, count("num_env_steps") // decisions) * env_steps,
            # Upstream saves when it evaluates.
            "checkpoint_interval": count("eval_interval") * env_steps,
            "staggered_start": False,  # upstream's workers start together
        },
        "logger": {"interval": train["log_interval"]},
    }


def _environment(file: HarlFile) -> tuple[dict[str, Any], list[str]]:
    """Return ``env_args`` as sections, and its ignored keys."""
    given = {key: value for key, value in file.env_args.items() if value is not None}
    used_keys = {"state_type"} & set(given)
    if file.env == ENV_NAME:
        plain = plain_keys(given.get("task", DEFAULT_TASK))
        used_keys = {key for key in given if key in plain or "." in key}
        given.pop(TEAM_REWARD, None)  # a setting of the algorithm here
    ignored = [f"env_args.{key}" for key in given if key not in used_keys]

    settings = {key: value for key, value in given.items() if key in used_keys}
    overruled = KEYS["overruled"]
    for key in [key for key in settings if long_key(key) in overruled]:
        section, name = overruled[long_key(key)].split(".")
        if settings.pop(key) != file.algo_args.get(section, {}).get(name):
            ignored.append(f"env_args.{key}")
    resolve_settings(settings)  # raises for invalid values
    return parse_settings(settings), ignored


def _ignored(file: HarlFile, values: Mapping[str, Any], algo: str) -> list[str]:
    """Return a file's keys without effect."""
    ignored = []
    for section, content in file.algo_args.items():
        for name, value in content.items():
            if not _has_effect(section, name, value, values, algo):
                ignored.append(f"{section}.{name}")
    return ignored


def _has_effect(section: str, name: str, value: Any, values: Mapping[str, Any], algo: str) -> bool:
    """Return whether a key has the same effect here as upstream, possibly none."""
    key = f"{section}.{name}"
    if key in _WITHOUT_EFFECT_IF:
        return value == _WITHOUT_EFFECT_IF[key]
    if key == "device.cuda_deterministic":
        return not (value and values["device"]["cuda"])
    if key == "logger.log_dir":
        return Path(str(value)) == Path("results")
    if algo == "mappo" and key == "algo.fixed_order":  # no effect upstream either
        return True
    return key in _HONOURED.union(KEYS["dependent"], keys_of(algo))


def config_beside(models: Path) -> Path | None:
    """Return the ``config.json`` in a ``models/`` folder or beside it. None if there is none."""
    places = (models / CONFIG, models.absolute().parent / CONFIG)
    return next((path for path in places if path.is_file()), None)


def models_config(path: Path, num_agents: int, obs_size: int) -> dict[str, Any]:
    """Return the sections for an evaluation of ``num_agents`` actors trained with HARL.

    The configuration is the ``config.json`` in ``path``. If it names no observation, the
    observation is inferred from ``obs_size``.
    """
    file = read(path)
    if file.algo in UPSTREAM_ONLY:
        with errors_of(_name(file.path)):
            sections, _ = _environment(file)
    else:
        sections, _ = apply({}, {}, file)
    sections = merge({"task": {"name": DEFAULT_TASK}}, sections)
    task = dict(sections["task"])
    if task["name"] == DEFAULT_TASK and "observation" not in task:
        task["observation"] = "reference" if obs_size == 2 + 3 * num_agents else "sincos"
    return merge(sections, {"task": task, "env": {"num_agents": num_agents}})


SETTINGS_FILES.register(
    "load_config",
    SettingsFile(
        "upstream HARL's config.json or YAML, whose algorithm, networks and run replace those of "
        "the run file",
        lambda base, over, path: apply(base, over, read(path)),
    ),
)

# HARL counts an interval in rollouts, as we do.
TRAIN_FLAGS.register("env", OtherFlag())  # every environment is MAPush's
TRAIN_FLAGS.register("model_dir", OtherFlag(("runner.init_from",)))
TRAIN_FLAGS.register("log_interval", OtherFlag(("logger.interval",)))
# HARL reads every key of its YAML as a flag. Those with another name here are hints.
for _section, _keys in (("algorithm", ALGORITHM_KEYS), ("network", NETWORK_KEYS)):
    for _theirs, _ours in _keys.items():
        if _theirs not in NAMES:
            NOTHING[_theirs] = f"say --set {_section}.{_ours}=VALUE"
