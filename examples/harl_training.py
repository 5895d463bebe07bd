"""Train with upstream HARL's own runners, unpatched.

    python examples/harl_training.py --algo happo --n_rollout_threads 64 --num_env_steps 1_000_000

Every key in HARL's YAML is a flag, and every other flag is a setting of ``mapush.MAPushEnv``.
HARL_PATH names a HARL checkout, otherwise the installed package is used. Upstream counts decisions
in ``--num_env_steps``, and puts its results below ``--log_dir``.
"""

import argparse
import ast
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import mapush
from harl_mapush.clients.harl.harl_logger import attach_logger


def main(argv: Sequence[str] | None = None) -> None:
    """Train as the command line says, and save the final networks."""
    parser = argparse.ArgumentParser(description="Training by upstream HARL's own runners.")
    parser.add_argument("--algo", default="happo", help="one of upstream's algorithms")
    parser.add_argument("--exp_name", default="default", help="a folder of the results")
    parser.add_argument("--load_config", default="", help="config.json of an earlier run")
    arguments, rest = parser.parse_known_args(argv)

    mapush.register_with_harl()
    from harl.runners import RUNNER_REGISTRY
    from harl.utils.configs_tools import get_defaults_yaml_args

    if arguments.load_config:
        saved = json.loads(Path(arguments.load_config).read_text(encoding="utf-8"))
        arguments.algo = saved["main_args"]["algo"]
        algo_args = saved["algo_args"]
        env_args = saved["env_args"]
    else:
        algo_args, env_args = get_defaults_yaml_args(arguments.algo, "mapush")
    for flag, text in zip(rest[::2], rest[1::2], strict=True):
        _set(flag.removeprefix("--"), _value(text), algo_args, env_args)
    if "warmup_steps" in algo_args["train"] and not hasattr(np, "int"):
        algo_args["eval"]["use_eval"] = False  # off-policy it needs NumPy below 1.24

    runner = RUNNER_REGISTRY[arguments.algo](
        {**vars(arguments), "env": "mapush"}, algo_args, env_args
    )
    if not hasattr(runner, "logger"):
        attach_logger(runner)  # off-policy runners have none
    runner.run()
    runner.save()  # upstream saves at evaluations only
    runner.close()


def _set(key: str, value: Any, algo_args: dict[str, Any], env_args: dict[str, Any]) -> None:
    """Set a key in every HARL section with this key, else in the environment's settings."""
    sections = [section for section in algo_args.values() if key in section]
    for section in sections or [env_args]:
        section[key] = value


def _value(text: str) -> Any:
    """Return a text's Python literal, else the text."""
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return text


if __name__ == "__main__":
    main()
