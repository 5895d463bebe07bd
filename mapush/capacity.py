"""Largest number of worlds in this machine's memory: ``mapush capacity``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harl_mapush import config
from harl_mapush.memory_plan import GIB, describe, most_worlds, plan_memory
from mqe.config import ConfigError
from mqe.registry import resolve_sim

PROGRAM = "mapush capacity"


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="The number of worlds that a training could have in this machine's memory.",
        example=f"{PROGRAM} --preset cuboid",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--config", metavar="FILE", help="run file (YAML)")
    source.add_argument(
        "--preset",
        metavar="NAME",
        default=config.DEFAULT_PRESET,
        help=f"run file that ships with mapush: {', '.join(config.presets())}",
    )
    config.add_import(parser)
    config.add_flags(parser, tuple(config.FLAGS))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the memory plan and the largest number of worlds. Return the exit code."""
    return config.exit_code(lambda: _main(argv), PROGRAM)


def _main(argv: Sequence[str] | None) -> int:
    arguments = make_parser().parse(argv)
    if arguments.config is not None:
        base = config.load_file(arguments.config)
    else:
        base = config.load_preset(arguments.preset)
    cfg, notices = config.resolve(base, config.flag_values(arguments))
    for notice in notices:
        sys.stdout.write(f"Note: {notice}.\n")
    plan = plan_memory(cfg, *resolve_sim(cfg.sim))
    max_worlds = most_worlds(plan)
    if max_worlds is None:
        raise ConfigError(f"{plan.device}: the system does not tell its free memory")
    per_world = plan.in_worlds / plan.num_envs
    for_all = plan.needed - plan.in_worlds
    sys.stdout.write(
        f"{describe(plan)}\n"
        f"A world takes {per_world / GIB * 1024:.2f} MiB beside {for_all / GIB:.2f} GiB for all. "
        f"Up to env.num_envs={max_worlds} fit; these settings have {plan.num_envs}.\n"
    )
    # The largest number is rounded down.
    return 0 if plan.free is None or plan.needed <= plan.free else 1
