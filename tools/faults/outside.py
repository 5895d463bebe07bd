"""Runs on a faulty machine: a clock with jumps by days, and a share with failures during training.
Needs a C compiler.

    python tools/faults/outside.py

The clock must change neither a weight nor a time limit. A failed share ends the run with exit code
4 and one line, and the run resumes once the share is back.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mqe.tensor_files import read_tensors

TRAIN = [sys.executable, "-m", "harl_mapush.train"]
TINY = ["--preset", "smoke", "--device", "cpu", "--num_envs", "4", "--set", "runner.num_steps=4"]
TINY += ["--set", "runner.checkpoint_interval=512"]
ERRORS = (errno.EIO, errno.ESTALE, errno.ENOSPC)
PATIENCE_S = 60


def train(*arguments: str, log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start a run with its output in ``log``."""
    with log.open("wb") as lines:
        return subprocess.Popen(
            [*TRAIN, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=lines,
            env=os.environ | environment,
        )


def last_line(log: Path) -> str:
    """Return the last line of a log."""
    return log.read_text(encoding="utf-8").splitlines()[-1]


def try_clock(folder: Path, library: Path) -> list[str]:
    """Train with and without a jumping clock and return the differences."""
    jumps = {"JUMP": "1", "LD_PRELOAD": str(library)}
    length = ["--num_env_steps", "2048"]
    for name, environment in (("steady", {}), ("jumps", jumps)):
        words = [*TINY, *length, "--out", str(folder / name)]
        if train(*words, log=folder / f"{name}.log", **environment).wait() != 0:
            return [f"{name}: {last_line(folder / f'{name}.log')}"]
    problems = []
    for path in (folder / "steady" / "checkpoints").rglob("actor_*.pt"):
        other = folder / "jumps" / path.relative_to(folder / "steady")
        before = read_tensors(path)
        after = read_tensors(other)
        if not all(before[name].equal(after[name]) for name in before):
            problems.append(f"{path.name} of checkpoint {path.parent.name} differs")

    words = [*TINY, "--num_env_steps", "1_000_000_000", "--set", "runner.max_wall_time=10s"]
    begun = time.monotonic()
    log = folder / "limit.log"
    code = train(*words, "--out", str(folder / "limit"), log=log, **jumps).wait()
    if code != 3 or time.monotonic() - begun > PATIENCE_S:
        problems.append(f"the time limit: exit code {code}, {last_line(log)}")
    return problems


def try_share(folder: Path, library: Path, error: int) -> list[str]:
    """Let a share fail under a run and return the problem."""
    share = folder / f"share{error}"
    share.mkdir()
    run = share / "run"
    fail = folder / f"fail{error}"
    log = folder / f"share{error}.log"
    environment = {"SHARE": f"{share}/", "FAIL": str(fail), "ERROR": str(error)}
    environment["LD_PRELOAD"] = str(library)
    process = train(
        *TINY, "--num_env_steps", "100_000_000", "--out", str(run), log=log, **environment
    )
    while not any(run.glob("checkpoints/*/manifest.json")) and process.poll() is None:
        time.sleep(0.2)
    fail.touch()
    try:
        code = process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return [f"{errno.errorcode[error]}: it goes on after {PATIENCE_S} s"]
    fail.unlink()
    problems = []
    if code != 4 or "Traceback" in log.read_text(encoding="utf-8"):
        problems.append(f"{errno.errorcode[error]}: exit code {code}, {last_line(log)}")
    again = folder / f"again{error}.log"
    words = ["--resume", str(run), "--set", "runner.max_wall_time=5s"]
    if train(*words, log=again).wait() != 3:
        problems.append(f"{errno.errorcode[error]}: {last_line(again)}")
    return problems


def main() -> int:
    """Try every fault, print the problems, and return whether there were any."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = folder / "outside.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        problems = try_clock(folder, library)
        for error in ERRORS:
            problems += try_share(folder, library, error)
    for line in problems:
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"1 clock, {len(ERRORS)} errors of a share, {len(problems)} bad\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
