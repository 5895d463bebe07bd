"""Check this machine step by step, from versions to a saved checkpoint: ``mapush doctor``.

The check stops at the first failure and prints a hint for the user. Exit code 0: no stage failed.
1: a stage failed. 2: the command line was wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harl_mapush import config
from harl_mapush.process import library_lines, say
from mapush.doctor.checkup import TOGETHER_S, Checkup
from mapush.doctor.stage import Stage, StageError, StageSkippedError
from mapush.doctor.stages import CRASH, STAGES
from mqe.config import ConfigError
from mqe.sim.simulator import SimulatorError

PROGRAM = "mapush doctor"
NUM_COLLECTORS = 2  # for settings without collectors
SIGN_INTERVAL_S = 4.0  # between two progress lines of a long stage
# CUDA and torch read them only at their start, hence a new process. The first launches kernels one
# by one. With the others a failed assertion inside a kernel is named by its line, if torch was
# compiled for that: the second is the name in torch's messages, the third the one it reads.
_DEBUGGING = {"CUDA_LAUNCH_BLOCKING": "1", "TORCH_USE_CUDA_DSA": "1", "PYTORCH_USE_CUDA_DSA": "1"}


class StageResult(NamedTuple):
    """The result of one stage."""

    stage: str
    status: str  # passed, skipped or failed; not run; running, until there is a result
    seconds: float = 0.0
    detail: str = ""
    hint: str | None = None


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="A check of this machine, step by step, up to the first step that fails.",
        example="mapush doctor --device cuda",
    )
    parser.add_argument("--preset", metavar="NAME", help="preset of the run for the check")
    parser.add_argument(
        "--gpus",
        type=int,
        default=1,
        metavar="N",
        help="number of ranks that train together in the check, each on its own GPU",
    )
    parser.add_argument(
        "--async",
        action="store_true",
        dest="has_collectors",
        help="a training with collectors as well",
    )
    parser.add_argument(
        "--collectors",
        "--num_workers",
        type=int,
        metavar="K",
        help="number of collectors in the check with --async, by default the preset's",
    )
    parser.add_argument(
        "--duration",
        "--run_duration",
        type=float,
        metavar="SECONDS",
        help=f"duration of the last stage of --async, by default {TOGETHER_S:.0f} s",
    )
    parser.add_argument("--json", action="store_true", help="the results as JSON alone")
    parser.add_argument(
        "--cuda-debug",
        action="store_true",
        help="GPU kernels one by one with torch's assertions on the device, for the stage of a "
        "crash",
    )
    # Set by --cuda-debug, which reads results from this file.
    parser.add_argument("--report", metavar="FILE", help=argparse.SUPPRESS)
    config.add_import(parser)
    config.add_flags(parser, ("--device", "--sim"))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Check the machine by the arguments ``argv``. Return the exit code."""
    return config.exit_code(lambda: _main(list(sys.argv[1:] if argv is None else argv)), PROGRAM)


def _main(argv: list[str]) -> int:
    arguments = make_parser().parse(argv)
    default_preset = "laptop_hasac" if arguments.has_collectors else config.DEFAULT_PRESET
    preset = arguments.preset or default_preset
    cfg, _ = config.resolve(config.load_preset(preset), config.flag_values(arguments))

    _check_async_flags(arguments)
    if arguments.cuda_debug and arguments.report is None:
        return _check_apart(argv, arguments.json)
    if arguments.gpus < 1:
        raise ConfigError(f"--gpus: must be a whole number from 1 on, not {arguments.gpus}")
    if arguments.gpus > 1 and arguments.has_collectors:
        raise ConfigError(
            f"--gpus {arguments.gpus} and --async exclude each other: ranks have no collectors; "
            "leave one out"
        )

    checkup = Checkup(cfg, arguments.cuda_debug, arguments.gpus)
    if arguments.has_collectors:
        checkup.num_collectors = arguments.collectors or cfg.runner.collectors or NUM_COLLECTORS
        checkup.together_s = arguments.duration or TOGETHER_S
    tell = _teller(arguments.json, arguments.report)
    with _clean_stdout(arguments.json), library_lines(_say_aside):
        results = list(examine(checkup, tell, STAGES))
    return _conclude(_facts(results, checkup), arguments.json)


def _check_async_flags(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for invalid flags of ``--async``, and for these flags without it."""
    for flag, value in (("collectors", arguments.collectors), ("duration", arguments.duration)):
        if value is None:
            continue
        if not arguments.has_collectors:
            raise ConfigError(f"--{flag} {value:g} needs --async, whose check has collectors")
        if not 0 < value < math.inf:
            raise ConfigError(f"--{flag}: must be above 0, not {value:g}")


def _conclude(facts: dict[str, Any], is_json: bool) -> int:
    say(json.dumps(facts, indent=2) if is_json else conclusion(facts))
    return 0 if facts["ok"] else 1


def examine(
    checkup: Checkup, tell: Callable[[StageResult], None], stages: Sequence[Stage]
) -> Iterator[StageResult]:
    """Run the stages up to the first failure. Yield their results.

    ``tell`` is called when a stage begins, every few seconds while it runs, and when it ends.
    """
    try:
        for stage in stages:
            tell(StageResult(stage.name, "running"))

            def tell_progress(seconds: float, name: str = stage.name) -> None:
                tell(StageResult(name, "running", seconds))

            with _signs_of_life(tell_progress):
                result = run_stage(stage, checkup)
            tell(result)
            yield result
            if result.status == "failed":
                return
    finally:
        checkup.close()


@contextmanager
def _signs_of_life(tell: Callable[[float], None]) -> Iterator[None]:
    """Context manager: call ``tell`` every few seconds with the elapsed time [s]."""
    is_over = threading.Event()
    start = time.perf_counter()

    def keep_telling() -> None:
        while not is_over.wait(SIGN_INTERVAL_S):
            tell(time.perf_counter() - start)

    thread = threading.Thread(target=keep_telling, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def run_stage(stage: Stage, checkup: Checkup) -> StageResult:
    """Run one stage. Any exception is its failure."""
    has_gpu = checkup.device.type != "cpu" or (
        stage.any_gpu_will_do and torch.cuda.device_count() > 0
    )
    if stage.needs_gpu and not has_gpu:
        return StageResult(stage.name, "skipped", detail="the run uses no GPU")
    if stage.needs_ranks and checkup.num_ranks == 1:
        return StageResult(stage.name, "skipped", detail="one process; --gpus N checks several")
    if stage.needs_collectors and not checkup.num_collectors:
        return StageResult(stage.name, "skipped", detail="no collectors; --async checks them")

    start = time.perf_counter()
    status = "failed"
    hint = stage.hint
    try:
        detail = stage.run(checkup)
        status = "passed"
        hint = None
    except StageSkippedError as error:
        status = "skipped"
        detail = str(error)
        hint = None
    except StageError as error:
        detail = str(error)
        hint = error.hint
    except (ConfigError, SimulatorError) as error:
        detail = str(error)
    except Exception as error:  # the stage looks for errors of any kind
        detail = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return StageResult(stage.name, status, time.perf_counter() - start, detail, hint)


def format_result(result: StageResult) -> str:
    """Format a result as one line, and the hint as a second one."""
    line = f"{result.status:<8}{result.stage:<14}{result.detail}"
    if result.status in ("passed", "running"):
        line += f" ({result.seconds:.1f} s)"
    if result.hint is not None:
        line += f"\n{'':<8}what to do: {result.hint}"
    return line


def conclusion(facts: dict[str, Any]) -> str:
    """Format the overall outcome in one line."""
    if facts["ok"]:
        return f"Everything works: simulator {facts['simulator']} on {facts['device']}."
    stages = facts["stages"]
    broken = next(stage["stage"] for stage in stages if stage["status"] == "failed")
    left = sum(stage["status"] == "not run" for stage in stages)
    return f"Stopped at stage '{broken}'; {left} stages were not run."


def result_of_crash(report: Sequence[StageResult], returncode: int) -> StageResult:
    """Return a dead process's result: its last stage has failed."""
    running = [result.stage for result in report if result.status == "running"]
    reason = signal.Signals(-returncode).name if returncode < 0 else f"exit code {returncode}"
    name = running[-1] if running else STAGES[0].name
    return StageResult(name, "failed", detail=f"the process died: {reason}", hint=CRASH)


def _check_apart(argv: list[str], is_json: bool) -> int:
    """Run the check in a process with GPU kernels one by one.

    The process reports results as it runs. If the process dies, its last stage has failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        command = [sys.executable, "-m", "mapush", "doctor", *argv, "--report", str(report)]
        stdout = subprocess.PIPE if is_json else None
        done = subprocess.run(
            command, env=os.environ | _DEBUGGING, stdout=stdout, text=True, check=False
        )
        lines = report.read_text(encoding="utf-8").splitlines() if report.is_file() else []
    results = [StageResult(**json.loads(line)) for line in lines]
    ended = [result for result in results if result.status != "running"]
    has_failed_stage = bool(ended) and ended[-1].status == "failed"
    if done.returncode == 0 or (done.returncode == 1 and has_failed_stage):
        sys.stdout.write(done.stdout or "")
        return done.returncode

    crash = result_of_crash(results, done.returncode)
    if not is_json:
        say(format_result(crash))
    return _conclude(_facts([*ended, crash], None), is_json)


def _facts(results: Sequence[StageResult], checkup: Checkup | None) -> dict[str, Any]:
    """Return all findings as plain values."""
    ran = {result.stage for result in results}
    rest = [StageResult(stage.name, "not run") for stage in STAGES if stage.name not in ran]
    facts: dict[str, Any] = {
        "ok": all(result.status != "failed" for result in results),
        "stages": [result._asdict() for result in (*results, *rest)],
    }
    if checkup is not None:
        facts["simulator"] = checkup.sim_name
        facts["device"] = str(checkup.device)
        facts["versions"] = checkup.versions
        facts["gpus"] = checkup.gpus
        facts["ranks"] = checkup.num_ranks
        facts["memory_plan"] = None
        if checkup.plan is not None:
            facts["memory_plan"] = checkup.plan._asdict() | {"needed": checkup.plan.needed}
    return facts


def _teller(is_json: bool, report: str | None) -> Callable[[StageResult], None]:
    def tell(result: StageResult) -> None:
        if result.status == "running" and result.seconds > 0.0:  # a progress line
            tell_progress = _say_aside if is_json else say
            tell_progress(format_result(result))
            return
        if not is_json and result.status != "running":
            say(format_result(result))
        if report is not None:
            with Path(report).open("a", encoding="utf-8") as file:
                file.write(json.dumps(result._asdict()) + "\n")

    return tell


@contextmanager
def _clean_stdout(active: bool) -> Iterator[None]:
    """Context manager: redirect the stdout of libraries, compiled ones included, to stderr."""
    if not active:
        yield
        return
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(real, 1)
        os.close(real)


def _say_aside(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
