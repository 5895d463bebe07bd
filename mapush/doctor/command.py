"""Check this machine step by step, from versions to a saved checkpoint: ``mapush doctor``.

The check stops at the first stage that fails and says what to do about it. Exit code 0: every stage
that applies to this machine passed; 1: a stage failed; 2: the command line was wrong.
"""

from __future__ import annotations

import argparse
import json
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
from harl_mapush.callbacks.logger import library_lines
from mapush.doctor.async_stages import ASYNC_STAGES, AsyncCheckup
from mapush.doctor.checkup import Checkup
from mapush.doctor.stage import Stage, StageError, StageSkippedError
from mapush.doctor.stages import CRASH, STAGES
from mqe.config import ConfigError
from mqe.registry import IN_PROCESS
from mqe.sim.simulator import SimulatorError

PROGRAM = "mapush doctor"
SIGN_INTERVAL_S = 4.0  # between two lines of a stage that takes long
_BLOCKING = "CUDA_LAUNCH_BLOCKING"  # read when CUDA starts, hence a process of its own


class Verdict(NamedTuple):
    """The result of one stage."""

    stage: str
    status: str  # passed, skipped, failed; running or not run in between
    seconds: float = 0.0
    detail: str = ""
    hint: str | None = None


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM, description="Check this machine step by step, and stop at what fails."
    )
    parser.add_argument("--preset", metavar="NAME", help="the run that is tried")
    parser.add_argument(
        "--gpus",
        type=int,
        default=1,
        metavar="N",
        help="also try N ranks that train together, on a GPU each",
    )
    parser.add_argument(
        "--async",
        action="store_true",
        dest="has_collectors",
        help="check a run with collectors, from each part to all",
    )
    parser.add_argument("--json", action="store_true", help="nothing but JSON on stdout")
    parser.add_argument(
        "--cuda-debug",
        action="store_true",
        help="launch GPU kernels one by one, wait for each, and survive a crash",
    )
    # What --cuda-debug reads.
    parser.add_argument("--report", metavar="FILE", help=argparse.SUPPRESS)
    config.add_import(parser)
    config.add_flags(parser, ("--device", "--sim"))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Check as the command line says; return the exit code."""
    return config.exit_code(lambda: _main(list(sys.argv[1:] if argv is None else argv)), PROGRAM)


def _main(argv: list[str]) -> int:
    arguments = make_parser().parse(argv)
    usual = "laptop_hasac" if arguments.has_collectors else config.DEFAULT_PRESET
    preset = arguments.preset or usual
    cfg, _ = config.resolve(config.load_preset(preset), config.flag_values(arguments))
    if arguments.cuda_debug and arguments.report is None:
        return _check_apart(argv, arguments.json)
    if arguments.gpus < 1:
        raise ConfigError(f"--gpus: must be a whole number from 1 on, not {arguments.gpus}")
    if arguments.gpus > 1 and arguments.has_collectors:
        raise ConfigError(
            f"--gpus {arguments.gpus}: ranks have no collectors; leave it out, or --async"
        )
    kind, stages = (AsyncCheckup, ASYNC_STAGES) if arguments.has_collectors else (Checkup, STAGES)
    checkup = kind(
        cfg, is_launched_singly=arguments.cuda_debug, preset=preset, num_ranks=arguments.gpus
    )
    tell = _teller(arguments.json, arguments.report)
    with _clean_stdout(arguments.json), library_lines(_say_aside):
        verdicts = list(
            examine(checkup, tell, stages) if arguments.has_collectors else examine(checkup, tell)
        )
    return _conclude(_facts(verdicts, checkup, stages), arguments.json)


def _conclude(facts: dict[str, Any], is_json: bool) -> int:
    _say(json.dumps(facts, indent=2) if is_json else conclusion(facts))
    return 0 if facts["ok"] else 1


def examine(
    checkup: Checkup, tell: Callable[[Verdict], None], stages: Sequence[Stage] = STAGES
) -> Iterator[Verdict]:
    """Run stage after stage up to the first that fails; report when each begins and ends; return
    the verdicts.
    """
    try:
        for stage in stages:
            tell(Verdict(stage.name, "running"))
            with _signs_of_life(
                lambda seconds, name=stage.name: tell(Verdict(name, "running", seconds))
            ):
                verdict = judge(stage, checkup)
            tell(verdict)
            yield verdict
            if verdict.status == "failed":
                return
    finally:
        checkup.close()


@contextmanager
def _signs_of_life(tell: Callable[[float], None]) -> Iterator[None]:
    """Call ``tell`` every few seconds with the time [s] that has passed."""
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


def judge(stage: Stage, checkup: Checkup) -> Verdict:
    """Run one stage; whatever it raises is its failure."""
    has_gpu = checkup.device.type != "cpu" or (
        stage.any_gpu_will_do and torch.cuda.device_count() > 0
    )
    if stage.needs_gpu and not has_gpu:
        return Verdict(stage.name, "skipped", detail="no GPU here, or not the one to be used")
    if stage.needs_ranks and checkup.num_ranks == 1:
        return Verdict(stage.name, "skipped", detail="one process; --gpus N tries several")
    if stage.needs_worker and checkup.sim_name not in IN_PROCESS:
        return Verdict(stage.name, "skipped", detail="the simulator is no process of its own")
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
    except Exception as error:  # of any kind: finding it is what the stage is for
        detail = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Verdict(stage.name, status, time.perf_counter() - start, detail, hint)


def format_verdict(verdict: Verdict) -> str:
    """Format a verdict in a line, and what to do in a second."""
    line = f"{verdict.status:<8}{verdict.stage:<14}{verdict.detail}"
    line += f" ({verdict.seconds:.1f} s)" if verdict.status in ("passed", "running") else ""
    return line if verdict.hint is None else f"{line}\n{'':<8}what to do: {verdict.hint}"


def conclusion(facts: dict[str, Any]) -> str:
    """Format the outcome of all stages."""
    if facts["ok"]:
        return f"Everything works: simulator {facts['simulator']} on {facts['device']}."
    stages = facts["stages"]
    broken = next(stage["stage"] for stage in stages if stage["status"] == "failed")
    left = sum(stage["status"] == "not run" for stage in stages)
    return f"Stopped at stage '{broken}'; {left} stages were not run."


def verdict_of_crash(report: Sequence[Verdict], returncode: int) -> Verdict:
    """Return the verdict of a process that ended without an answer: the stage in which it was."""
    running = [verdict.stage for verdict in report if verdict.status == "running"]
    reason = signal.Signals(-returncode).name if returncode < 0 else f"exit code {returncode}"
    name = running[-1] if running else STAGES[0].name
    return Verdict(name, "failed", detail=f"the process died: {reason}", hint=CRASH)


def _check_apart(argv: list[str], is_json: bool) -> int:
    """Check in a process whose kernels are launched one by one, and which reports verdicts as it
    runs.

    If it ends without a conclusion, name the stage that killed it.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        command = [sys.executable, "-m", "mapush", "doctor", *argv, "--report", str(report)]
        stdout = subprocess.PIPE if is_json else None
        done = subprocess.run(
            command, env=os.environ | {_BLOCKING: "1"}, stdout=stdout, text=True, check=False
        )
        lines = report.read_text(encoding="utf-8").splitlines() if report.is_file() else []
    verdicts = [Verdict(**json.loads(line)) for line in lines]
    ended = [verdict for verdict in verdicts if verdict.status != "running"]
    if done.returncode == 0 or (done.returncode == 1 and ended and ended[-1].status == "failed"):
        sys.stdout.write(done.stdout or "")
        return done.returncode
    crash = verdict_of_crash(verdicts, done.returncode)
    if not is_json:
        _say(format_verdict(crash))
    return _conclude(
        _facts([*ended, crash], None, ASYNC_STAGES if "--async" in argv else STAGES), is_json
    )


def _facts(
    verdicts: Sequence[Verdict], checkup: Checkup | None, stages: Sequence[Stage]
) -> dict[str, Any]:
    """Return everything that was found, as plain values."""
    ran = {verdict.stage for verdict in verdicts}
    rest = [Verdict(stage.name, "not run") for stage in stages if stage.name not in ran]
    facts: dict[str, Any] = {
        "ok": all(verdict.status != "failed" for verdict in verdicts),
        "stages": [verdict._asdict() for verdict in (*verdicts, *rest)],
    }
    if checkup is not None:
        facts["simulator"] = checkup.sim_name
        facts["device"] = str(checkup.device)
        facts["versions"] = checkup.versions
        facts["gpus"] = checkup.gpus
        plan = checkup.plan
        facts["ranks"] = checkup.ranks
        facts["memory_plan"] = None if plan is None else plan._asdict() | {"needed": plan.needed}
    return facts


def _teller(is_json: bool, report: str | None) -> Callable[[Verdict], None]:
    def tell(verdict: Verdict) -> None:
        if verdict.status == "running" and verdict.seconds > 0.0:  # a sign of life
            (_say_aside if is_json else _say)(format_verdict(verdict))
            return
        if not is_json and verdict.status != "running":
            _say(format_verdict(verdict))
        if report is not None:
            with Path(report).open("a", encoding="utf-8") as file:
                file.write(json.dumps(verdict._asdict()) + "\n")

    return tell


@contextmanager
def _clean_stdout(active: bool) -> Iterator[None]:
    """Send whatever libraries write to stdout meanwhile, compiled ones included, to stderr."""
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


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _say_aside(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
