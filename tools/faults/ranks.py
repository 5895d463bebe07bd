"""Try faults with two ranks: one killed, interrupted, stopped or cut off, other settings, resumes.

``python tools/faults/ranks.py [--device cuda] [--jobs 6] [--only killed ...]`` prints a line for
each case: agreement with ``docs/guides/gpu.md``, the ranks' exit codes, the seconds from the fault
to the others' end, and their messages. It exits with 1 after a failed case. On two CPU cores it
takes four minutes. A message waits for at most ``--patience`` here. Everything has a time limit.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import tiny

ROOT = Path(__file__).resolve().parents[2]
TRAIN = "harl_mapush.train"
LOST_LINE = r"^rank \d lost another rank"
ITERATION = 64 * 4 * 5  # env steps: worlds, decisions, control steps of a decision
# From checkpoint to checkpoint; graphs are recorded in the third iteration.
INTERVAL = 6 * ITERATION
SETTINGS = (
    "--preset smoke --num_envs 64 --set runner.num_steps=4 --set network.hidden_sizes=[32] "
    f"--set runner.checkpoint_interval={INTERVAL} --set runner.torch_threads=1 --set "
    "algorithm.num_epochs=2 "
    "--set algorithm.num_minibatches=1 --seed 1"
).split()
FOREVER = ["--num_env_steps", "1_000_000_000"]
WITHIN_S = 30.0  # docs/guides/gpu.md
LOST = 5  # the exit code of ranks that another one left


class Verdict(NamedTuple):
    """How a case ended."""

    is_right: bool
    codes: dict[int, int | str]  # of ranks that ended by themselves
    seconds: float
    said: list[str]


class Job:
    """One ``torchrun`` start in its own folder, or one process without torchrun. ``close``
    ends it.
    """

    deadline = float("inf")  # of everything, on the monotonic clock
    patience_s = 40.0  # in place of ten minutes

    def __init__(self, folder: Path, device: str, words: list[str], ranks: int = 2) -> None:
        """Start ``ranks`` ranks with a training's words. ``{rank}`` in a word is the rank's
        number.
        """
        self.folder = folder
        self.log = folder / "log"
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.rank"):
            old.unlink()
        rank_words = ["--rank-in", str(self.patience_s), str(folder)]
        rank_command = [__file__, *rank_words, *words, "--device", device]
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
        command = [
            sys.executable,
            *(torchrun if ranks > 1 else []),
            *rank_command,
        ]
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        variables["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
        )
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=variables,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    def pid(self, rank: int) -> int:
        """Return the process of a rank."""
        return int((self.folder / f"{rank}.pid.rank").read_text())

    def codes(self) -> dict[int, int | str]:
        """Return the exit codes of self-ended ranks."""
        return {
            int(path.name[0]): int(path.read_text())
            for path in sorted(self.folder.glob("*.code.rank"))
        }

    def wait(self, what: Callable[[], object], limit_s: float) -> float:
        """Wait until a condition is true. Return the seconds, or raise TimeoutError."""
        start = time.monotonic()
        end = min(start + limit_s, self.deadline)
        while not what():
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(0.02)
        return time.monotonic() - start

    def wait_for_checkpoint(self, run: Path, limit_s: float) -> None:
        """Wait until a run has written its first."""
        self.wait(lambda: saved(run) or self.has_ended(), limit_s)
        if self.has_ended():
            raise TimeoutError

    def has_ended(self) -> bool:
        """Return whether ``torchrun``, or the one process, is over."""
        return self.process.poll() is not None

    def said(self, *patterns: str) -> list[str]:
        """Return the ranks' lines with a match for one of ``patterns``."""
        text = self.log.read_text(errors="replace")
        if "ChildFailedError" in text:  # torchrun's own traceback, its last word
            text = text.rpartition("Traceback")[0]
        return [
            line
            for line in text.splitlines()
            if any(re.search(pattern, line) for pattern in patterns)
        ]

    def close(self) -> None:
        """End all remaining processes."""
        for rank in range(4):
            with suppress(OSError, ValueError):
                if (
                    str(self.folder).encode()
                    in Path(f"/proc/{self.pid(rank)}/cmdline").read_bytes()
                ):
                    os.kill(self.pid(rank), signal.SIGKILL)
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Cases:
    """All cases, each in its own folder below ``place``."""

    def __init__(self, place: Path, device: str, limit_s: float) -> None:
        self.place = place
        self.device = device
        self.limit_s = limit_s
        self.jobs: list[Job] = []

    def start(self, name: str, words: list[str], ranks: int = 2) -> Job:
        """Start a job for ``close`` to end."""
        self.jobs.append(Job(self.place / name, self.device, words, ranks))
        return self.jobs[-1]

    def new(self, name: str, *more: str, ranks: int = 2) -> tuple[Job, Path]:
        """Start a new run and return it with its folder."""
        run = self.place / f"run-{name}"
        return self.start(name, [*SETTINGS, "--out", str(run), *more], ranks), run

    def close(self) -> None:
        """End all remaining jobs."""
        for job in self.jobs:
            job.close()

    def killed(self) -> Verdict:
        """One rank is killed: the other ends within 30 s with one line."""
        job, run = self.new("killed", *FOREVER)
        job.wait_for_checkpoint(run, self.limit_s)
        os.kill(job.pid(1), signal.SIGKILL)
        took = job.wait(lambda: 0 in job.codes(), self.limit_s)
        job.wait(job.has_ended, self.limit_s)
        said = job.said(LOST_LINE, r"^Traceback", r"^python -m harl")
        is_right = (
            took < WITHIN_S
            and job.codes() == {0: LOST}
            and len(said) == 1
            and job.process.returncode == 1
        )
        return Verdict(is_right and is_whole(run), job.codes(), took, said)

    def asked(self) -> Verdict:
        """SIGTERM to rank 1 ends both after the iteration, with one checkpoint."""
        job, run = self.new("asked", *FOREVER)
        job.wait_for_checkpoint(run, self.limit_s)
        os.kill(job.pid(1), signal.SIGTERM)
        took = job.wait(lambda: len(job.codes()) == 2 or job.has_ended(), self.limit_s)
        job.wait(job.has_ended, self.limit_s)
        said = job.said(r"Interrupted", r"^Traceback", LOST_LINE)
        is_right = job.codes() == {0: 143, 1: 143} and len(said) == 1
        is_right = is_right and said[0].startswith("Interrupted (SIGTERM)")
        return Verdict(is_right and is_whole(run), job.codes(), took, said)

    def stopped(self) -> Verdict:
        """One rank is stopped: messages to it fail after ``--patience``, and all ranks end."""
        job, run = self.new("stopped", *FOREVER)
        job.wait_for_checkpoint(run, self.limit_s)
        os.kill(job.pid(1), signal.SIGSTOP)
        return self._lost(job, run, Job.patience_s + WITHIN_S)

    def cut(self) -> Verdict:
        """One rank's connections are cut: all ranks end within 30 s."""
        job, run = self.new("cut", *FOREVER)
        job.wait_for_checkpoint(run, self.limit_s)
        os.kill(job.pid(1), signal.SIGRTMIN)
        return self._lost(job, run, WITHIN_S)

    def _lost(self, job: Job, run: Path, within_s: float) -> Verdict:
        """Wait until rank 0 ends, and torchrun after it."""
        took = job.wait(lambda: 0 in job.codes(), self.limit_s)
        job.wait(job.has_ended, self.limit_s)
        said = job.said(LOST_LINE, r"^Traceback", r"^python -m harl")
        is_right = took < within_s and job.codes()[0] == LOST and 1 <= len(said) <= 2
        is_right = is_right and all(re.search(LOST_LINE, line) for line in said)
        return Verdict(is_right and is_whole(run), job.codes(), took, said)

    def again(self) -> Verdict:
        """Two ranks resume the run from the case ``killed``, on a CPU to the last bit of a run
        without a fault.
        """
        run = self.place / "run-killed"
        resumed = self._resume("again", run, 2)
        if not resumed.is_right or self.device != "cpu":
            return resumed
        job, whole_run = self.new("whole", "--num_env_steps", str(saved(run)[-1]))
        job.wait(job.has_ended, self.limit_s)
        is_exact = tiny.is_equal(tiny.final_state(run), tiny.final_state(whole_run))
        bits = "equal bits" if is_exact else "OTHER BITS than a run without a fault"
        return resumed._replace(is_right=is_exact, said=[*resumed.said, bits])

    def wider(self) -> Verdict:
        """Four ranks resume the two-rank run from the case ``asked``."""
        return self._resume("wider", self.place / "run-asked", 4)

    def fewer(self) -> Verdict:
        """One rank resumes the two-rank run from the case ``asked``."""
        return self._resume("fewer", self.place / "run-asked", 1)

    def first(self) -> Verdict:
        """A one-process run. It also compiles everything for later cases."""
        job, run = self.new("first", "--num_env_steps", str(2 * INTERVAL), ranks=1)
        took = job.wait(job.has_ended, 2 * self.limit_s)
        said = job.said(r"^Done", r"^Traceback", r"^python -m harl")
        return Verdict(
            job.codes() == {0: 0} and saved(run)[-1:] == [2 * INTERVAL], job.codes(), took, said
        )

    def more(self) -> Verdict:
        """Two ranks resume a run of one process."""
        return self._resume("more", self.place / "run-first", 2)

    def _resume(self, name: str, run: Path, ranks: int) -> Verdict:
        if not saved(run):
            return Verdict(False, {}, 0.0, ["there is no run to resume"])
        begin = saved(run)[-1]
        end = saved(run)[-1] + INTERVAL
        job = self.start(name, ["--resume", str(run), "--num_env_steps", str(end)], ranks)
        took = job.wait(job.has_ended, self.limit_s)
        said = job.said(r"resumes at", r"^Done", r"^Traceback", LOST_LINE, r"^python -m harl")
        is_right = job.codes() == dict.fromkeys(range(ranks), 0) and len(said) == 2
        is_right = (
            is_right
            and f"resumes at {begin} of {end}" in said[0]
            and is_whole(run)
            and saved(run)[-1] == end
        )
        return Verdict(is_right, job.codes(), took, said)

    def mismatch(self) -> Verdict:
        """Ranks with other settings are refused before anything is built."""
        return self._refused(
            "mismatch", "gamma is 0.91 on rank 1, but 0.9 on", "--set", "algorithm.gamma=0.9{rank}"
        )

    def mistake(self) -> Verdict:
        """A mistake of all ranks is a line of each."""
        return self._refused("mistake", "algorithm.gamma", "--set", "algorithm.gamma=2")

    def alone(self) -> Verdict:
        """A mistake on one rank only is reported by this rank, and ends the others."""
        return self._refused(
            "alone", "train (rank 1): algorithm.gamma", "--set", "algorithm.gamma={rank}.5"
        )

    def crowded(self) -> Verdict:
        """More ranks than GPUs are refused in one line. On a CPU there is nothing to try."""
        import torch

        return self._refused("crowded", "GPU(s)", ranks=torch.cuda.device_count() + 1)

    def _refused(self, name: str, words: str, *settings: str, ranks: int = 2) -> Verdict:
        """Start a run for the ranks to refuse, with ``words`` in their lines and without a
        folder.
        """
        job, run = self.new(name, *FOREVER, *settings, ranks=ranks)
        took = job.wait(job.has_ended, self.limit_s)
        said = job.said(r"^python -m harl", r"^Traceback", LOST_LINE)
        refusals = [line for line in said if words in line]
        is_right = 2 in job.codes().values() and 1 <= len(refusals) <= ranks
        is_right = is_right and not any(line.startswith("Traceback") for line in said)
        return Verdict(is_right and not run.exists(), job.codes(), took, said)


CHAINS = (
    ("killed", "again"),
    ("asked", "fewer", "wider"),
    ("stopped",),
    ("cut",),
    ("more",),
    ("mismatch", "mistake", "alone", "crowded"),
)


def main() -> int:
    """Try all cases, or the named ones. Return 1 after a failure."""
    if sys.argv[1:2] == ["--rank-in"]:
        return be_rank(float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=1, help="chains of cases at once")
    parser.add_argument(
        "--limit", type=float, default=90.0, help="seconds that a step of a case may take"
    )
    parser.add_argument(
        "--deadline", type=float, default=600.0, help="seconds that everything may take"
    )
    parser.add_argument(
        "--patience", type=float, default=Job.patience_s, help="seconds that a message may take"
    )
    parser.add_argument(
        "--only", nargs="+", choices=[name for chain in CHAINS for name in chain], help="cases"
    )
    parser.add_argument("--keep", type=Path, help="folder to leave logs and runs in")
    arguments = parser.parse_args()
    Job.deadline = time.monotonic() + arguments.deadline
    Job.patience_s = arguments.patience
    chains = [
        [name for name in chain if arguments.only is None or name in arguments.only]
        for chain in CHAINS
    ]
    if arguments.device == "cpu":
        chains = [[name for name in chain if name != "crowded"] for chain in chains]
    with tempfile.TemporaryDirectory() as folder:
        work_folder = (arguments.keep or Path(folder)).resolve()
        cases = Cases(work_folder, arguments.device, arguments.limit)
        try:
            if arguments.only is None or "more" in arguments.only:
                is_right = attempt(cases, "first")
            else:
                is_right = True
            with ThreadPoolExecutor(arguments.jobs) as pool:
                done = pool.map(lambda chain: [attempt(cases, name) for name in chain], chains)
                return int(not (is_right and all(all(outcomes) for outcomes in done)))
        finally:
            cases.close()


def attempt(cases: Cases, name: str) -> bool:
    """Try a case, print its result, and return whether all was right."""
    start = time.monotonic()
    try:
        outcome = getattr(cases, name)()
    except (TimeoutError, OSError, ValueError) as error:
        log = cases.place / name / "log"
        last = log.read_text(errors="replace").splitlines()[-3:] if log.is_file() else []
        codes = next((job.codes() for job in cases.jobs if job.folder.name == name), {})
        outcome = Verdict(
            False, codes, time.monotonic() - start, [f"{type(error).__name__} {error}", *last]
        )
    finally:
        for job in [job for job in cases.jobs if job.folder.name == name]:
            job.close()
    codes = ", ".join(f"rank {rank}: {code}" for rank, code in outcome.codes.items())
    verdict = "pass" if outcome.is_right else "FAIL"
    lines = " | ".join(line[:240] for line in outcome.said) or "nothing"
    sys.stdout.write(
        f"{name}: {verdict}; exit codes {codes or 'none'}; {outcome.seconds:.1f} s; said: {lines}\n"
    )
    sys.stdout.flush()
    return outcome.is_right


def be_rank(patience_s: float, folder: Path, words: list[str]) -> int:
    """Train as a rank, and note its process and exit code."""
    from harl_mapush.distributed import launch

    rank = os.environ.get("RANK", "0")
    leave = os._exit

    def note(code: int) -> None:
        (folder / f"{rank}.code.part").write_text(str(code))
        (folder / f"{rank}.code.part").rename(folder / f"{rank}.code.rank")

    def noted_exit(code: int) -> None:
        note(code)
        leave(code)

    def cut_off(*_: object) -> None:
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    signal.signal(signal.SIGRTMIN, cut_off)
    launch._PATIENCE = timedelta(seconds=patience_s)
    os._exit = noted_exit  # type: ignore[assignment]
    (folder / f"{rank}.pid.rank").write_text(str(os.getpid()))
    (folder / f"{rank}.code.rank").unlink(missing_ok=True)
    sys.argv = [TRAIN, *(word.replace("{rank}", rank) for word in words)]
    code = 1
    try:
        runpy.run_module(TRAIN, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
        raise
    finally:
        note(code)
    return code


def saved(run: Path) -> list[int]:
    """Return the env steps of a run's whole checkpoints."""
    from harl_mapush.runs import run_folder

    folders = [
        path.parent
        for path in run.glob("checkpoints/*/manifest.json")
        if not path.parent.name.startswith(".")
    ]
    return sorted(
        steps
        for folder in folders
        if (steps := run_folder.parse_step_name(folder.name)) is not None
    )


def is_whole(run: Path) -> bool:
    """Return whether the newest checkpoint of a run is."""
    from harl_mapush.runs import checkpoint, run_folder
    from mqe.config import ConfigError

    folder = run_folder.last_checkpoint(run)
    if folder is None:
        return False
    try:
        checkpoint.check_whole(folder)
    except ConfigError:
        return False
    return True


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
