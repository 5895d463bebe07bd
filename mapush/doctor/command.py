"""Check this machine step by step, from versions to pictures: ``mapush doctor``.

The check stops at the first failure and prints a hint for the user. Exit code 0: no stage failed.
1: a stage failed. 2: the command line was wrong.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.process import library_lines, say
from mapush.doctor.stages import Stage, StageError, stages
from mqe.config import ConfigError
from mqe.sim.simulator import SimulatorError

PROGRAM = "mapush doctor"


class StageResult(NamedTuple):
    """The result of one stage."""

    stage: str
    status: str  # passed or failed
    seconds: float
    detail: str
    hint: str | None = None


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="A check of this machine, step by step, up to the first step that fails.",
        example="mapush doctor --device cuda",
    )
    parser.add_argument("--preset", metavar="NAME", help="preset of the run for the check")
    config.add_import(parser)
    config.add_flags(parser, ("--device", "--sim"))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Check the machine by the arguments ``argv``. Return the exit code."""
    return config.exit_code(lambda: _main(list(sys.argv[1:] if argv is None else argv)), PROGRAM)


def _main(argv: list[str]) -> int:
    arguments = make_parser().parse(argv)
    preset = arguments.preset or config.DEFAULT_PRESET
    cfg, _ = config.resolve(config.load_preset(preset), config.flag_values(arguments))
    with library_lines(say):
        results = examine(cfg, stages(), say)
    if results[-1].status == "failed":
        say(f"Stopped at stage '{results[-1].stage}'.")
        return 1
    say("Everything works. mapush train --preset smoke trains for a minute.")
    return 0


def examine(
    cfg: RunCfg, planned: Mapping[str, Stage], tell: Callable[[str], None]
) -> list[StageResult]:
    """Run the stages up to the first failure. Return their results.

    ``tell`` receives a line before and after each stage, so that a crash is after its stage's line.
    """
    results: list[StageResult] = []
    for name, stage in planned.items():
        tell(f"running {name}")
        results.append(run_stage(name, stage, cfg))
        tell(format_result(results[-1]))
        if results[-1].status == "failed":
            break
    return results


def run_stage(name: str, stage: Stage, cfg: RunCfg) -> StageResult:
    """Run one stage. Any exception is its failure."""
    start = time.perf_counter()
    hint = stage.hint
    try:
        detail = stage.run(cfg)
        return StageResult(name, "passed", time.perf_counter() - start, detail)
    except StageError as error:
        detail = str(error)
        hint = error.hint
    except (ConfigError, SimulatorError) as error:
        detail = str(error)
    except Exception as error:  # errors of any kind are what a stage is for
        detail = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return StageResult(name, "failed", time.perf_counter() - start, detail, hint)


def format_result(result: StageResult) -> str:
    """Format a result as one line, and the hint as a second one."""
    line = f"{result.status:<8}{result.stage:<12}{result.detail} ({result.seconds:.1f} s)"
    return line if result.hint is None else f"{line}\n{'':<8}what to do: {result.hint}"
