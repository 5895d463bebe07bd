"""Train with upstream HARL's own runners: ``python -m mapush.extensions.harl.run_harl --harl PATH
--algo happo``.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from harl_mapush import config
from harl_mapush.clients.flat_settings import (
    KEYS,
    SECTIONS,
    TEAM_REWARD,
    long_key,
    parse_settings,
    plain_keys,
    plain_settings,
)
from harl_mapush.clients.harl.harl_logger import attach_logger
from harl_mapush.clients.harl.harl_registration import (
    DEFAULT_SETTINGS,
    ENV_NAME,
    PATH_VARIABLE,
    register_with_harl,
    task_name,
)
from harl_mapush.config import LoggerCfg, RunnerCfg
from harl_mapush.process import keep_freed_memory
from mapush.extensions.harl.harl_files import DISCRETE_ONLY
from mapush.extensions.harl.harl_settings import (
    algorithm_cfg,
    as_count,
    as_switch,
    build_from_harl,
    check_length,
    learning_settings,
    network_cfg,
)
from mqe.config import ConfigError, assignment, build, load_yaml, merge, read_text, unknown
from mqe.registry import TASKS
from mqe.world.streams import Streams

PROGRAM = "python -m mapush.extensions.harl.run_harl"
ALGORITHMS = ("happo", "hatrpo", "haa2c", "mappo", "haddpg", "hatd3", "hasac", "maddpg", "matd3")
ON_POLICY = ALGORITHMS[:4]
# Upstream crashes with FP states after the warm-up.
EP_ONLY = (
    "haddpg",
    "hatd3",
    "maddpg",
    "matd3",
)
# Of upstream.
ACTIVATIONS = (
    "sigmoid",
    "tanh",
    "relu",
    "leaky_relu",
    "selu",
    "hardswish",
    "identity",
)
_WITHOUT_GAIN = ACTIVATIONS[-2:]  # upstream's on-policy networks fail with them
_COUNTS = (
    *(
        ("train", key)
        for key in ("n_rollout_threads", "num_env_steps", "episode_length", "train_interval")
    ),
    *(("train", key) for key in ("log_interval", "eval_interval")),
    *(("eval", key) for key in ("n_eval_rollout_threads", "eval_episodes")),
    *(("algo", key) for key in ("batch_size", "buffer_size", "n_step")),
)
_SEEDS = 2**32


class Arguments(NamedTuple):
    """The arguments of upstream's runners."""

    main: dict[str, Any]
    algo: dict[str, Any]
    env: dict[str, Any]


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="Train with an unmodified checkout of upstream HARL. Later wins: its YAML or "
        "--load_config, flags, "
        "--set. Every key of HARL's YAML is a flag as well: --lr 0.0005 --episode_length 100.",
    )
    parser.set_defaults(keys=())
    add = parser.add_argument
    add(
        "--harl",
        metavar="PATH",
        help=f"the checkout; without it {PATH_VARIABLE} names one, or harl is installed",
    )
    add("--algo", metavar="NAME", help=f"{', '.join(ALGORITHMS)} (default: happo)")
    add(
        "--load_config",
        metavar="FILE",
        help="config.json of another run of HARL, instead of the algorithm's YAML",
    )
    add("--exp_name", metavar="NAME", default="default", help="name of the run's folder")
    add("--task", metavar="TASK", help="what the robots do")
    add("--object", metavar="OBJECT", help="what they push")
    add("--num_agents", metavar="N", type=int, help="robots in a world")
    add("--state_type", metavar="TYPE", help="EP or FP")
    add(
        "--device", metavar="DEVICE", help="auto, cpu or cuda, of the worlds and of HARL's networks"
    )
    add(
        "--num_envs",
        "--n_rollout_threads",
        metavar="N",
        type=int,
        help="parallel worlds (train.n_rollout_threads)",
    )
    add(
        "--num_env_steps",
        metavar="N",
        type=int,
        help="decisions summed over worlds (train.num_env_steps)",
    )
    add("--seed", metavar="N", type=int, help="of every random number (seed.seed)")
    config.add_import(parser)
    add(
        "--out",
        metavar="DIR",
        help="where HARL makes its run folder (logger.log_dir; default: results)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any setting of HARL (seed, device, train, eval, render, model, algo, logger) or of "
        "the environment "
        f"({', '.join(SECTIONS)}), read as YAML, more than once if need be",
    )
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line; ``keys`` of the result are the pairs of HARL's own flags."""
    parser = make_parser()
    given, rest = parser.parse_known_args(argv)
    keys = []
    words = iter(rest)
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise ConfigError(parser.unknown(name))
        if not equals:
            value = next(words, "")
        if not value:
            raise ConfigError(f"{name}: has no value; say {name} VALUE")
        keys.append((name.removeprefix("--"), value))
    given.keys = tuple(keys)
    config.import_modules(given.imports)
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; return the exit code."""
    return config.exit_code(lambda: _main(argv), PROGRAM)


def _main(argv: Sequence[str] | None) -> int:
    given = parse(argv)
    keep_freed_memory()
    register_with_harl(given.harl)
    arguments = arguments_of(given)
    # Complain before a run folder is made.
    cfg, _ = config.resolve({}, parse_settings(arguments.env))
    if arguments.main["algo"] in ON_POLICY:
        check_minibatches(
            arguments, _num_agents(cfg) if arguments.env.get("state_type") == "FP" else 1
        )
    folder = _results(arguments)
    before = _below(folder)
    try:
        _train(arguments)
    except AssertionError as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        # Not a check of upstream's but a fault.
        if not Path(last.filename).is_relative_to(_package()):
            raise
        # What a refused run has begun; children first.
        for path in sorted(_below(folder) - before, reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        raise ConfigError(f"upstream refuses the settings: {error or last.line}") from None
    return 0


def _train(arguments: Arguments) -> None:
    runner = importlib.import_module("harl.runners").RUNNER_REGISTRY[arguments.main["algo"]](
        *arguments
    )
    is_rendering = arguments.algo["render"]["use_render"]
    if arguments.main["algo"] not in ON_POLICY and not is_rendering:
        attach_logger(runner)
    try:
        runner.run()
        if not is_rendering:
            runner.save()  # upstream saves at evaluations only
    finally:
        runner.close()


def _num_agents(cfg: config.RunCfg) -> int:
    """Return the size of a task's team, which may be the task's own choice."""
    host = torch.device("cpu")
    setup = TASKS[cfg.task.name].make(
        cfg.task, dataclasses.replace(cfg.env, num_envs=1), host, Streams(0, 1, host)
    )
    return setup.task.spec.num_agents


def _results(arguments: Arguments) -> Path:
    """Return the folder in which upstream makes the run's."""
    task = task_name(arguments.env)
    main_args = arguments.main
    return Path(
        arguments.algo["logger"]["log_dir"],
        ENV_NAME,
        task,
        main_args["algo"],
        main_args["exp_name"],
    )


def _below(folder: Path) -> set[Path]:
    """Return what exists in a folder, with the folder and its parents."""
    return {path for path in (folder, *folder.parents) if path.exists()} | set(folder.rglob("*"))


def arguments_of(given: Any) -> Arguments:
    """Gather the runner's arguments from a parsed command line; raise ConfigError for what cannot
    be.
    """
    # They name folders.
    build(LoggerCfg, {"exp_name": given.exp_name, "out_dir": given.out}, "logger")
    path = given.load_config
    loaded = None if path is None else _load(path)
    algo = given.algo or (loaded.main.get("algo") if loaded else "happo")
    if not algo:
        raise ConfigError(f"--load_config {path!r}: does not say which algorithm; add --algo")
    if algo not in ALGORITHMS:
        only = f"acts in discrete spaces only, and robots here do not; take {', '.join(ALGORITHMS)}"
        why = only if algo in DISCRETE_ONLY else unknown("algorithm", algo, ALGORITHMS)
        raise ConfigError(f"--algo {algo}: {why}")
    defaults = _defaults(algo)
    algo_args = defaults
    env_args = {}
    if loaded and (loaded.main.get("algo") or algo) == algo:
        algo_args = merge(defaults, loaded.algo)
    if loaded and path and loaded.main.get("env") == ENV_NAME:
        env_args |= _environment_of(loaded, path, algo_args["train"]["n_rollout_threads"])
    flags: dict[str, Any] = {
        "train": {"n_rollout_threads": given.num_envs, "num_env_steps": given.num_env_steps},
        "seed": {"seed": given.seed},
        "logger": {"log_dir": given.out},
    }
    plain = ("task", "object", "num_agents", "state_type", "device")
    env_args |= {key: getattr(given, key) for key in plain if getattr(given, key) is not None}
    over = {
        section: {key: v for key, v in keys.items() if v is not None}
        for section, keys in flags.items()
    }
    over = reduce(merge, settings_of(given.keys, algo_args), over)
    over = reduce(merge, (assignment(text) for text in given.set), over)
    env_args |= plain_settings(
        {section: over.pop(section) for section in SECTIONS if section in over}
    )
    known = plain_keys(env_args.get("task") or DEFAULT_SETTINGS["task"])
    env_args = {key: value for key, value in DEFAULT_SETTINGS.items() if key in known} | env_args
    if given.imports:
        env_args["env.imports"] = list(given.imports)
    if "n_threads" in env_args:
        raise ConfigError(
            f"--set {KEYS['n_threads']}: upstream counts worlds by --num_envs "
            "(train.n_rollout_threads)"
        )
    if algo in EP_ONLY and (env_args.get("state_type") or "EP") != "EP":
        raise ConfigError(
            f"--state_type {env_args['state_type']}: upstream trains {algo} with EP states only; "
            "say EP"
        )
    _check_known(over, algo_args)
    algo_args = _checked(algo, merge(algo_args, over), defaults)
    _settle_device(algo_args, env_args)
    if algo not in ON_POLICY and algo_args["eval"]["use_eval"] and not hasattr(np, "int"):
        algo_args["eval"]["use_eval"] = False
        sys.stdout.write(
            "Note: eval.use_eval is off: upstream's off-policy evaluation needs NumPy below 1.24.\n"
        )
    main_args = {
        "algo": algo,
        "env": ENV_NAME,
        "exp_name": given.exp_name,
        "load_config": path or "",
    }
    return Arguments(main_args, algo_args, env_args)


def settings_of(
    keys: Sequence[tuple[str, str]], algo_args: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the settings of HARL's own flags; each key counts in every section that has it."""
    sections = {name: values for name, values in algo_args.items() if isinstance(values, dict)}
    for key, text in keys:
        if key == "env":
            if text != ENV_NAME:
                raise ConfigError(f"--env {text!r}: these worlds are {ENV_NAME}; leave it out")
            continue
        found = [name for name, values in sections.items() if key in values]
        if not found:
            known = [name for values in sections.values() for name in values]
            raise ConfigError(unknown("argument", f"--{key}", [f"--{name}" for name in known]))
        yield from (assignment(f"{name}.{key}={text}") for name in found)


def _load(path: str) -> Arguments:
    try:
        content = json.loads(read_text(Path(path)))
        loaded = Arguments(content["main_args"], content["algo_args"], content["env_args"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"--load_config {path!r}: not a config.json of HARL ({type(error).__name__})"
        ) from None
    for name, part in _sections(loaded):
        if not isinstance(part, dict):
            raise ConfigError(
                f"--load_config {path!r}: {name}: must be a section of keys, not {part!r}"
            )
    return loaded


def _sections(loaded: Arguments) -> Iterator[tuple[str, Any]]:
    yield from zip(("main_args", "algo_args", "env_args"), loaded, strict=True)
    yield from ((f"algo_args.{section}", values) for section, values in loaded.algo.items())


def _environment_of(loaded: Arguments, path: str, num_worlds: Any) -> dict[str, Any]:
    """Return a file's environment in short keys, without its number of worlds, of which upstream
    takes no notice.
    """
    try:
        settings = plain_settings(parse_settings(loaded.env))
    except ConfigError as error:
        raise ConfigError(f"--load_config {path!r}: env_args: {error}") from None
    if settings.pop("n_threads", num_worlds) != num_worlds:
        key = next(key for key in loaded.env if long_key(key) == KEYS["n_threads"])
        sys.stdout.write(
            f"Note: env_args.{key} of the file is not honoured: train.n_rollout_threads is taken.\n"
        )
    return settings | {TEAM_REWARD: loaded.env.get(TEAM_REWARD)}


def _defaults(algo: str) -> dict[str, Any]:
    """Read the algorithm's YAML in the checkout."""
    return load_yaml(_package() / "configs" / "algos_cfgs" / f"{algo}.yaml")


def _package() -> Path:
    return Path(importlib.import_module("harl").__path__[0])


def _check_known(over: Mapping[str, Any], algo_args: Mapping[str, Any]) -> None:
    """Raise ConfigError for keys that upstream would silently ignore."""
    for section, values in over.items():
        if section not in algo_args:
            raise ConfigError(unknown("section", section, [*algo_args, *SECTIONS]))
        for key in values:
            if key not in algo_args[section]:
                raise ConfigError(
                    unknown(
                        "key",
                        f"{section}.{key}",
                        [f"{section}.{name}" for name in algo_args[section]],
                    )
                )


def _checked(
    algo: str, algo_args: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings with whole numbers where upstream's YAML has them; raise ConfigError for
    what cannot be.
    """
    checked = {}
    for section, values in algo_args.items():
        usual = defaults.get(section, {})
        checked[section] = {
            key: _like(value, usual.get(key), f"{section}.{key}") for key, value in values.items()
        }
    for section, key in _COUNTS:
        if defaults[section].get(key) is not None and (
            section != "eval" or checked["eval"]["use_eval"]
        ):
            checked[section][key] = as_count(checked[section][key], f"{section}.{key}")
    runner = {"seed": checked["seed"]["seed"], "torch_threads": checked["device"]["torch_threads"]}
    build_from_harl(
        RunnerCfg, runner, "runner", {"seed.seed": "seed", "device.torch_threads": "torch_threads"}
    )
    _check_activations(checked["model"])
    _check_learning(algo, checked)
    if checked["seed"]["seed"] >= _SEEDS:
        raise ConfigError(
            f"seed.seed: must be below {_SEEDS}, which NumPy takes, not {checked['seed']['seed']}"
        )
    check_length(checked["train"], checked["train"]["episode_length"] if algo in ON_POLICY else 1)
    if algo not in ON_POLICY:
        _check_buffer(checked["train"], checked["algo"])
    return checked


def _like(value: Any, usual: Any, key: str) -> Any:
    """Return a value of the kind that upstream's YAML has there."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(usual, bool):
        return as_switch(value, key)
    if isinstance(usual, (int, float)):
        if not is_number or not math.isfinite(value):
            raise ConfigError(f"{key}: must be a finite number, not {value!r}")
        return int(value) if isinstance(usual, int) and value == int(value) else value
    if usual is not None and not isinstance(value, type(usual)):
        raise ConfigError(
            f"{key}: must be {'a list' if isinstance(usual, list) else 'a string'}, not {value!r}"
        )
    return value


def _check_activations(model: Mapping[str, Any]) -> None:
    for key in ("activation_func", "final_activation_func"):
        try:
            if key in model:
                importlib.import_module("harl.utils.models_tools").get_active_func(model[key])
        except AssertionError:
            raise ConfigError(f"model.{key}: {unknown('value', model[key], ACTIVATIONS)}") from None


def _check_learning(algo: str, algo_args: Mapping[str, Any]) -> None:
    """Raise ConfigError for what no learner can do; upstream allows rates of 0, off-policy more
    activations.
    """
    settings = learning_settings(algo_args)
    allowed = {key for key in ("lr", "critic_lr") if settings[key] == 0}
    if algo not in ON_POLICY:
        allowed.add("activation_func")
    settings = {key: value for key, value in settings.items() if key not in allowed}
    network_cfg(settings)
    if algo in ON_POLICY:
        if settings["activation_func"] in _WITHOUT_GAIN:
            raise ConfigError(
                f"model.activation_func: upstream cannot train {algo} with "
                f"{settings['activation_func']}, for which "
                "torch knows no gain; python -m harl_mapush.train --load_config can"
            )
        algorithm_cfg(algo, settings)


def check_minibatches(arguments: Arguments, num_views: int) -> None:
    """Raise ConfigError where a rollout has fewer training rows than minibatches, which upstream
    finds out later.

    ``num_views`` is how many states a world has: one, or where they are FP one an agent.
    """
    train, model, algo = (arguments.algo[section] for section in ("train", "model", "algo"))
    rows = train["n_rollout_threads"]
    if model["use_recurrent_policy"]:
        steps = train["episode_length"]
        length = model["data_chunk_length"]
        if steps % length:
            raise ConfigError(
                f"train.episode_length: must be a multiple of model.data_chunk_length ({length})"
            )
        rows *= steps // length
    elif not model["use_naive_recurrent_policy"]:
        rows *= train["episode_length"]
    for key, most in (("actor_num_mini_batch", rows), ("critic_num_mini_batch", rows * num_views)):
        if algo.get(key, 1) > most:
            raise ConfigError(
                f"algo.{key}: must be at most {most}, the training rows of a rollout, not "
                f"{algo[key]}"
            )


def _check_buffer(train: Mapping[str, Any], algo: Mapping[str, Any]) -> None:
    """Raise ConfigError where the first update would ask the replay buffer for more than it holds:
    upstream crashes.
    """
    worlds = train["n_rollout_threads"]
    wanted = algo["batch_size"]
    room = algo["buffer_size"]
    held = (train["warmup_steps"] // worlds + train["train_interval"]) * worlds
    problem = f"fewer than algo.batch_size ({wanted}); raise it, or lower algo.batch_size"
    if room < wanted:
        raise ConfigError(f"algo.buffer_size: {room} decisions are {problem}")
    if held < wanted:
        raise ConfigError(
            f"train.warmup_steps: {held} decisions before the first update are {problem}"
        )


def _settle_device(algo_args: dict[str, Any], env_args: Mapping[str, Any]) -> None:
    """Put HARL's networks where the worlds are, as far as HARL can: cpu or cuda:0."""
    device = str(env_args.get("device") or "auto")
    if device.startswith("cuda") and device not in ("cuda", "cuda:0"):
        raise ConfigError(
            f"--device {device}: upstream knows cuda:0 only; choose the GPU by CUDA_VISIBLE_DEVICES"
        )
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"--device {device}: no GPU here; say --device cpu or auto")
    if device != "auto":
        algo_args["device"]["cuda"] = device != "cpu"


if __name__ == "__main__":
    sys.exit(main())
