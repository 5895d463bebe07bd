"""Inject collector faults into runs, and check their ends.

``python tools/faults/collectors.py --tries 10`` prints a table. It exits with 1 after an unexpected
end. Collector and queue faults run on toy worlds, signals on tiny runs of the box task in separate
processes. ``slowest`` is the time to the end [s], from the fault (if it ends the run) or from the
start.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tiny
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harl_mapush.collectors.async_runner import AsyncRunner  # noqa: E402
from harl_mapush.collectors.launchers import CollectionError  # noqa: E402
from harl_mapush.progress import IterationReport  # noqa: E402
from harl_mapush.runs import run_folder  # noqa: E402
from tests.support import toy_collectors  # noqa: E402
from tests.support.hooks import Hooks  # noqa: E402

TRANSITIONS = 1600
_ENDS_WITHIN_S = 10.0
_SLOW_S = 0.3
SETTINGS = (
    *("--algo", "hasac", "--num_envs", "4", "--device", "cpu", "--set", "runner.num_steps=4"),
    *(
        "--set",
        "network.hidden_sizes=[8]",
        "--set",
        "task.decision_period=2",
        "--set",
        "task.episode_length_s=0.2",
    ),
    *(
        "--set",
        "runner.torch_threads=1",
        "--set",
        "runner.collectors=1",
        "--set",
        "algorithm.warmup=16",
    ),
    *("--set", "algorithm.batch_size=8", "--set", "algorithm.buffer_size=256"),
    *("--set", "runner.checkpoint_interval=320", "--num_env_steps", "10_000_000"),
)


class Said(logging.Handler):
    """Records the library's messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def make(folder: Path, **runner: object) -> AsyncRunner:
    """Build a run with one collector and a stall time of three seconds."""
    given = {"stall_time": 3.0} | runner
    return toy_collectors.make_runner(toy_collectors.settings(1, 8, TRANSITIONS, runner=given))


def finish(
    runner: AsyncRunner,
    said: Said,
    draw: random.Random,
    act: Callable[[], None],
    note: Callable[[IterationReport], None] = lambda report: None,
) -> str | None:
    """Run to the end with a fault at a random time, and return the problem."""
    at = draw.randrange(5, runner.progress.num_iterations // 2)

    def on_iteration(report: IterationReport) -> None:
        note(report)
        if runner.progress.iteration == at:
            act()

    runner.learn([Hooks(on_iteration)])
    return miscounted(runner, TRANSITIONS)


def miscounted(runner: AsyncRunner, transitions: int) -> str | None:
    """Return a finished run's difference from the planned transitions and updates, or None."""
    num_stored = sum(runner.experience.replay.num_added) * runner.experience.replay.shape.num_envs
    if num_stored != transitions:
        return f"{num_stored} stored of {transitions}"
    cfg = runner.algorithm.cfg
    block = runner.progress.num_transitions // runner.cfg.collectors
    # The block at the end of the warm-up counts.
    num_early = (math.ceil(cfg.warmup / block) - 1) * block
    owed = (transitions - num_early) * cfg.update_ratio
    if abs(owed - runner.algorithm.num_updates) >= 1.0:
        return f"{runner.algorithm.num_updates} updates instead of {owed:.1f}"
    return None


def killed(folder: Path, said: Said, draw: random.Random) -> str | None:
    """Kill a collector."""
    words = "died (killed by SIGKILL); its last line: 8 worlds on cpu"
    return ends_by(folder, said, draw, words, lambda runner: os.kill(pid(runner), signal.SIGKILL))


def hangs(folder: Path, said: Said, draw: random.Random) -> str | None:
    """Have a collector sleep for ever."""
    fault = folder / "fault"
    os.environ[toy_collectors.FAULT] = str(fault)
    words = "has made no progress for 3 s while collecting"
    return ends_by(folder, said, draw, words, lambda runner: fault.write_text("hang"), 20.0)


def stopped(folder: Path, said: Said, draw: random.Random) -> str | None:
    """Stop a collector's process."""
    words = "has made no progress"
    return ends_by(
        folder, said, draw, words, lambda runner: os.kill(pid(runner), signal.SIGSTOP), 20.0
    )


def queue_full(folder: Path, said: Said, draw: random.Random) -> str | None:
    """Slow down updates until the queue fills up."""
    return waits(make(folder, queue_blocks=1), "_update", said, draw)


def slow_storing(folder: Path, said: Said, draw: random.Random) -> str | None:
    """Make storing a block slow."""
    return waits(make(folder), "_store", said, draw)


def waits(runner: AsyncRunner, name: str, said: Said, draw: random.Random) -> str | None:
    """Slow down the trainer's method ``name`` from a random time on. The collector must wait, and
    nothing may be lost.
    """
    method = getattr(runner, name)

    def slow(*arguments: object) -> object:
        time.sleep(_SLOW_S)
        return method(*arguments)

    waited: list[float] = []

    def note(report: IterationReport) -> None:
        waited.append(report.metrics["collector0/waited"])

    problem = finish(runner, said, draw, lambda: setattr(runner, name, slow), note)
    share = statistics.mean(waited[-10:])
    return problem or expect(share > 0.5, f"the collector waited {share:.0%} of the time")


def learner_dies(folder: Path, said: Said, draw: random.Random) -> str | None:
    """Have an update raise."""
    words = "the learner died (RuntimeError"
    return ends_by(
        folder, said, draw, words, lambda runner: put(runner.algorithm, "update", RuntimeError)
    )


def raises(folder: Path, said: Said, draw: random.Random) -> str | None:
    """Have a collector raise again and again."""
    fault = folder / "fault"
    os.environ[toy_collectors.FAULT] = str(fault)
    return ends_by(
        folder,
        said,
        draw,
        "ValueError: the toy broke",
        lambda runner: fault.write_text("raise"),
        600.0,
    )


def ends_by(
    folder: Path,
    said: Said,
    draw: random.Random,
    words: str,
    act: Callable[[AsyncRunner], object],
    in_s: float = 10.0,
) -> str | None:
    """Inject a fatal fault into a run. It must report the fault and leave no process."""
    runner = make(folder)
    at = [0.0]

    def fault() -> None:
        at[0] = time.monotonic()
        act(runner)

    try:
        finish(runner, said, draw, fault)
    except CollectionError as error:
        left_s = time.monotonic() - at[0]
        is_gone = all(
            not post.worker.process.is_alive() for post in runner.collectors.posts if post.worker
        )
        state = runner.state_dict()
        return expect(
            words in str(error) and is_gone and left_s < in_s and state["iteration"] > 0, str(error)
        )
    return "it did not end"


def put(thing: object, name: str, error: type[BaseException] = MemoryError) -> None:
    """Replace a function by a stub with an exception."""

    def fail(*_: object) -> None:
        raise error("on purpose")

    setattr(thing, name, fail)


def signalled(
    number: int, is_group: bool, folder: Path, said: Said, draw: random.Random
) -> str | None:
    """Send a run a signal after its second checkpoint, and resume it."""
    run = folder / "run"
    process = start(run, folder / "log")
    deadline = time.monotonic() + 120.0
    while len(run_folder.checkpoints(run)) < 2:
        time.sleep(0.05)
        if time.monotonic() > deadline:
            return (folder / "log").read_text()
    time.sleep(draw.random())
    children = descendants(process)
    begun = time.monotonic()
    (os.killpg if is_group else os.kill)(process, number)
    code = tiny.wait(process)
    while any(is_running(child) for child in children) and time.monotonic() < begun + 20.0:
        time.sleep(0.02)
    took_s = time.monotonic() - begun
    last = run_folder.last_checkpoint(run)
    exit_code = -number if number == signal.SIGKILL else 128 + number
    if code != exit_code or took_s > _ENDS_WITHIN_S or last is None or not children:
        return (
            f"code {code}, {took_s:.1f} s, {last}, children {children}: "
            f"{(folder / 'log').read_text()[-500:]}"
        )
    steps = run_folder.checkpoints(run)[0][0]
    process = start(run, folder / "log", "--num_env_steps", str(steps + 320))
    return expect(tiny.wait(process) == 0, (folder / "log").read_text()[-800:])


def start(run: Path, log: Path, *more: str) -> int:
    """Start or resume a run in its own process group and return the group's id."""
    from harl_mapush import train

    process = os.fork()
    if process:
        return process
    code = 99
    try:
        os.setsid()
        with log.open("a") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            code = train.main(
                ["--resume", str(run), *more] if run.exists() else [*SETTINGS, "--out", str(run)]
            )
            sys.stdout.flush()
    finally:
        os._exit(code)


def descendants(process: int) -> list[int]:
    """Return the children of a process, and theirs."""
    children: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            children += [int(child), *descendants(int(child))]
    return children


def is_running(process: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pid(runner: AsyncRunner) -> int:
    """Return the process of the first collector."""
    return runner.collectors.posts[0].worker.process.pid


def expect(is_so: bool, otherwise: str) -> str | None:
    """Return None on success."""
    return None if is_so else otherwise


FAULTS: dict[str, Callable[[Path, Said, random.Random], str | None]] = {
    "collector killed": killed,
    "collector hangs": hangs,
    "collector stopped": stopped,
    "collector raises": raises,
    "queue full": queue_full,
    "slow storing": slow_storing,
    "learner dies": learner_dies,
    "learner killed": lambda *given: signalled(signal.SIGKILL, False, *given),
    "Ctrl-C": lambda *given: signalled(signal.SIGINT, True, *given),
    "SIGTERM": lambda *given: signalled(signal.SIGTERM, False, *given),
}


def main() -> int:
    """Print the table and return 1 after an unexpected end."""
    shared_before = sorted(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else []
    is_well = run_faults(FAULTS, __doc__, tries=10)
    shared = sorted(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else []
    print_row("left in /dev/shm", "", len(set(shared) - set(shared_before)), "")
    return 0 if is_well else 1


def run_faults(faults: dict[str, Callable[..., str | None]], doc: str | None, tries: int) -> bool:
    """Inject the faults named on the command line, and print a row each. Return whether all ended
    as expected.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--tries", type=int, default=tries, help="of each fault")
    parser.add_argument("--only", help="faults whose name has this in it")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    is_well = True
    torch.set_num_threads(1)
    print_row("fault", "tries", "ended well", "slowest")
    for name, give in faults.items():
        if arguments.only and arguments.only not in name:
            continue
        good = 0
        slowest_s = 0.0
        for _ in range(arguments.tries):
            said = Said()
            library = logging.getLogger("harl_mapush")
            library.addHandler(said)
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                problem = give(Path(folder), said, draw)
            library.removeHandler(said)
            os.environ.pop(toy_collectors.FAULT, None)
            slowest_s = max(slowest_s, time.monotonic() - begun)
            good += problem is None
            if problem is not None:
                sys.stderr.write(f"{name}: {problem}\n")
        print_row(name, arguments.tries, good, f"{slowest_s:.1f}")
        is_well = is_well and good == arguments.tries
    return is_well


def print_row(*cells: object) -> None:
    """Write one row of the table."""
    sys.stdout.write(
        "".join(f"{cell!s:<{20 if i == 0 else 12}}" for i, cell in enumerate(cells)).rstrip() + "\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
