"""Train with upstream HARL's own runners: ``python -m harl_mapush.interop.run_harl --harl PATH --algo happo``."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from harl_mapush import config
from harl_mapush.envs.mapush_env import KEYS, SECTIONS, parse_settings, plain_settings
from harl_mapush.interop.harl_logger import attach_logger
from harl_mapush.interop.register import DEFAULT_SETTINGS, ENV_NAME, PATH_VARIABLE, register_with_harl
from mqe.config import ConfigError, assignment, load_yaml, merge, unknown

PROGRAM = "python -m harl_mapush.interop.run_harl"
ALGORITHMS = ("happo", "hatrpo", "haa2c", "mappo", "haddpg", "hatd3", "hasac", "maddpg", "matd3")
DISCRETE_ONLY = ("had3qn",)
ON_POLICY = ALGORITHMS[:4]


class Arguments(NamedTuple):
    """What upstream's runners take."""

    main: dict[str, Any]
    algo: dict[str, Any]
    env: dict[str, Any]


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="Train with an unmodified checkout of upstream HARL. Later wins: its YAML or --load_config, flags, "
        "--set.",
    )
    add = parser.add_argument
    add("--harl", metavar="PATH", help=f"the checkout; without it {PATH_VARIABLE} names one, or harl is installed")
    add("--algo", metavar="NAME", help=f"{', '.join(ALGORITHMS)} (default: happo)")
    add("--load_config", metavar="FILE", help="config.json of another run of HARL, instead of the algorithm's YAML")
    add("--exp_name", metavar="NAME", default="default", help="names the run's folder")
    add("--task", metavar="TASK", help="what the robots do")
    add("--object", metavar="OBJECT", help="what they push")
    add("--num_agents", metavar="N", type=int, help="robots in a world")
    add("--state_type", metavar="TYPE", help="EP or FP")
    add("--device", metavar="DEVICE", help="auto, cpu or cuda, of the worlds and of HARL's networks")
    add("--num_envs", "--n_rollout_threads", metavar="N", type=int, help="parallel worlds (train.n_rollout_threads)")
    add("--num_env_steps", metavar="N", type=int, help="decisions summed over worlds (train.num_env_steps)")
    add("--seed", metavar="N", type=int, help="of every random number (seed.seed)")
    add("--out", metavar="DIR", help="where HARL makes its run folder (logger.log_dir; default: results)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any setting of HARL (seed, device, train, eval, render, model, algo, logger) or of the environment "
        f"({', '.join(SECTIONS)}), read as YAML, more than once if need be",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; return the exit code."""
    return config.exit_code(lambda: _main(argv), PROGRAM)


def _main(argv: Sequence[str] | None) -> int:
    given = make_parser().parse(argv)
    register_with_harl(given.harl)
    arguments = arguments_of(given)
    config.resolve({}, parse_settings(arguments.env))  # complain before a run folder is made
    runners = importlib.import_module("harl.runners")
    runner = runners.RUNNER_REGISTRY[arguments.main["algo"]](*arguments)
    is_rendering = arguments.algo["render"]["use_render"]
    if arguments.main["algo"] not in ON_POLICY and not is_rendering:
        attach_logger(runner)
    try:
        runner.run()
        if not is_rendering:
            runner.save()  # upstream saves at evaluations only
    finally:
        runner.close()
    return 0


def arguments_of(given: Any) -> Arguments:
    """Gather the runner's arguments from a parsed command line; raise ConfigError for what cannot be."""
    loaded = _load(given.load_config) if given.load_config is not None else None
    algo = given.algo or (loaded.main["algo"] if loaded else "happo")
    if algo not in ALGORITHMS:
        why = "acts in discrete spaces only" if algo in DISCRETE_ONLY else unknown("algorithm", algo, ALGORITHMS)
        raise ConfigError(f"--algo {algo}: {why}")
    algo_args = loaded.algo if loaded and loaded.main["algo"] == algo else _defaults(algo)
    env_args = dict(DEFAULT_SETTINGS)
    if loaded and loaded.main["env"] == ENV_NAME:
        env_args |= loaded.env
    flags: dict[str, Any] = {
        "train": {"n_rollout_threads": given.num_envs, "num_env_steps": given.num_env_steps},
        "seed": {"seed": given.seed},
        "logger": {"log_dir": given.out},
    }
    plain = ("task", "object", "num_agents", "state_type", "device")
    env_args |= {key: getattr(given, key) for key in plain if getattr(given, key) is not None}
    over = {section: {key: v for key, v in keys.items() if v is not None} for section, keys in flags.items()}
    over = reduce(merge, (assignment(text) for text in given.set), over)
    env_args |= plain_settings({section: over.pop(section) for section in SECTIONS if section in over})
    if "n_threads" in env_args:
        raise ConfigError(f"--set {KEYS['n_threads']}: upstream counts worlds by --num_envs (train.n_rollout_threads)")
    _check_known(over, algo_args)
    algo_args = merge(algo_args, over)
    _settle_device(algo_args, env_args)
    if algo not in ON_POLICY and algo_args["eval"]["use_eval"] and not hasattr(np, "int"):
        algo_args["eval"]["use_eval"] = False
        sys.stdout.write("Note: eval.use_eval is off: upstream's off-policy evaluation needs NumPy below 1.24.\n")
    main_args = {"algo": algo, "env": ENV_NAME, "exp_name": given.exp_name, "load_config": given.load_config or ""}
    return Arguments(main_args, algo_args, env_args)


def _load(path: str) -> Arguments:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return Arguments(content["main_args"], content["algo_args"], content["env_args"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--load_config {path!r}: not a config.json of HARL ({type(error).__name__})") from None


def _defaults(algo: str) -> dict[str, Any]:
    """Read the algorithm's YAML in the checkout."""
    package = Path(importlib.import_module("harl").__path__[0])
    return load_yaml(package / "configs" / "algos_cfgs" / f"{algo}.yaml")


def _check_known(over: Mapping[str, Any], algo_args: Mapping[str, Any]) -> None:
    """Complain of keys that upstream would pass over in silence."""
    for section, values in over.items():
        if section not in algo_args:
            raise ConfigError(unknown("section", section, [*algo_args, *SECTIONS]))
        for key in values:
            if key not in algo_args[section]:
                raise ConfigError(
                    unknown("key", f"{section}.{key}", [f"{section}.{name}" for name in algo_args[section]])
                )


def _settle_device(algo_args: dict[str, Any], env_args: Mapping[str, Any]) -> None:
    """Put HARL's networks where the worlds are, as far as HARL can: cpu or cuda:0."""
    device = env_args.get("device") or "auto"
    if device.startswith("cuda") and device not in ("cuda", "cuda:0"):
        raise ConfigError(f"--device {device}: upstream knows cuda:0 only; choose the GPU by CUDA_VISIBLE_DEVICES")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"--device {device}: no GPU here; say --device cpu or auto")
    if device != "auto":
        algo_args["device"]["cuda"] = device != "cpu"


if __name__ == "__main__":
    sys.exit(main())
