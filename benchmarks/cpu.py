"""Time the CPU simulator, its environment and training, one JSON line per part.

``python benchmarks/cpu.py [--part step training laptop] [--preset laptop] [--num_envs N] [--set
section.key=value]``

``step``: env-steps/s in ``env.step`` with the gait, and in physics alone on the recorded ``ctrl``,
over 200 control steps at ``decision_period`` 1, in turns. ``training``: whole training at
``decision_period`` 1. ``laptop``: the preset without changes. The last two give the time fractions
for physics, gait, task, policy and update. Every part gives its process's peak resident memory.
Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import sys

import torch
from measuring import (
    GIB,
    add_settings,
    alone,
    emit,
    lines_of_simulators,
    make_run,
    name_of,
    settings,
    used,
)
from rates import run_rates, shares, step_rates

PARTS = ("step", "training", "laptop")


def main() -> int:
    """Measure the parts asked for, each in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_settings(parser, "laptop")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--num_envs", type=int, default=None)
    parser.add_argument("--here", action="store_true", help="in this process")
    arguments = parser.parse_args()
    if arguments.here:
        measure(arguments, arguments.part[0])
        return 0
    words = ["--preset", arguments.preset]
    words += [] if arguments.num_envs is None else ["--num_envs", str(arguments.num_envs)]
    words += [word for text in arguments.set for word in ("--set", text)]
    return max(alone(__file__, *words, "--here", "--part", part) for part in arguments.part)


def measure(arguments: argparse.Namespace, part: str) -> None:
    """Print one line."""
    over = {} if arguments.num_envs is None else {"env": {"num_envs": arguments.num_envs}}
    over |= {} if part == "laptop" else {"task": {"decision_period": 1}}
    cfg = settings(arguments, **over)
    if cfg.runner.torch_threads is not None:
        torch.set_num_threads(cfg.runner.torch_threads)
    with lines_of_simulators():
        env, runner = make_run(cfg)
        if part == "step":
            rates = step_rates(env)
            facts = {"env_share": rates.pop("env_share")}
        else:
            rates = run_rates(runner)
            facts = {name: rates.pop(name) for name in ("learning_share", "beyond_env_share")}
            facts["shares"] = shares(runner)
    emit(
        part=part,
        device=name_of(env.device),
        num_envs=env.num_envs,
        decision_period=env.decision_period,
        env_steps_per_s=rates,
        **facts,
        peak_rss_gib=used(env.device) / GIB,
    )
    env.close()


if __name__ == "__main__":
    sys.exit(main())
