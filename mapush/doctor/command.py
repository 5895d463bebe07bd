"""Check this machine step by step, from versions to pictures: ``mapush doctor``.

The check stops at the first failure and prints a hint for the user. Exit code 0: no stage failed.
1: a stage failed. 2: the command line was wrong.
"""

import time
from typing import Any

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.process import say
from mapush.doctor.stages import Stage, StageError, stages
from mqe.config import ConfigError
from mqe.sim.simulator import SimulatorError

PROGRAM = "mapush doctor"


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="A check of this machine, step by step, up to the first step that fails.",
        example="mapush doctor --device cuda",
    )
    parser.add_argument(
        "--preset",
        metavar="NAME",
        default=config.DEFAULT_PRESET,
        help="preset or run file of the run for the check",
    )
    config.add_import(parser)
    config.add_flags(parser, ("--device", "--sim"))
    return parser


@config.command(make_parser)
def main(arguments: Any) -> int:
    """Check the machine. Return the exit code."""
    cfg, _ = config.resolve(config.load_preset(arguments.preset), config.flag_values(arguments))
    for name, stage in stages().items():
        say(f"running {name}")  # the last line of a crash
        if not run_stage(name, stage, cfg):
            say(f"Stopped at stage '{name}'.")
            return 1
    say("Everything works. mapush train --preset smoke trains for a minute.")
    return 0


def run_stage(name: str, stage: Stage, cfg: RunCfg) -> bool:
    """Run a stage and tell its result. Return whether it passed: any exception is its failure."""
    start = time.perf_counter()
    has_passed = False
    hint = stage.hint
    try:
        detail = stage.run(cfg)
        has_passed = True
    except StageError as error:
        detail = str(error)
        hint = error.hint
    except (ConfigError, SimulatorError) as error:
        detail = str(error)
    except Exception as error:  # errors of any kind are what a stage is for
        detail = f"{type(error).__name__}: {' '.join(str(error).split())}"
    status = "passed" if has_passed else "failed"
    say(f"{status:<8}{name:<12}{detail} ({time.perf_counter() - start:.1f} s)")
    if not has_passed:
        say(f"{'':<8}what to do: {hint}")
    return has_passed
