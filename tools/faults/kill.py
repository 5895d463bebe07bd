"""Kill tiny runs at random times, inside a save and by a power loss, resume them, and compare their
ends.

``python tools/faults/kill.py --runs 30`` prints a table. It exits with 1 if a run did not end
bit-equal to an uninterrupted one. ``power loss`` is a copy of the run's folder between two system
calls in a save. In the copy, unsynced files are empty and unsynced names may be missing.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import tiny
import torch

from harl_mapush.runs import checkpoint

_EVENTS = (
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "shutil.rmtree",
    "fsync",
)


class Tally(NamedTuple):
    """One run's results."""

    kills: int
    in_save: int
    begun_again: int
    is_equal: bool


def main() -> int:
    """Print the table and return 1 after a lost run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30, help="of each kind")
    parser.add_argument(
        "--iterations", type=int, default=12, help="of each run, with a save after each"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    length = arguments.iterations
    draw = random.Random(arguments.seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work_folder = Path(folder)
        begun = time.monotonic()
        assert (
            tiny.wait(tiny.start(work_folder / "through", length, log=work_folder / "log")) == 0
        ), (work_folder / "log").read_text()
        duration_s = time.monotonic() - begun
        reference = tiny.final_state(work_folder / "through")
        num_steps = count_steps(work_folder)
        kinds: dict[str, Callable[[Path], Tally]] = {
            "random time": lambda run: kill_at_random(run, length, draw, duration_s, reference),
            "inside a save": lambda run: kill_in_save(run, length, draw, num_steps, reference),
            "power loss": lambda run: lose_power(run, length, draw, num_steps, reference),
        }
        print_row("killed", "runs", "kills", "in a save", "begun again", "ends bit-equal")
        is_whole = True
        for kind, attempt in kinds.items():
            tallies = []
            for i in range(arguments.runs):
                tallies.append(attempt(work_folder / "run"))
                if not tallies[-1].is_equal:
                    lost = Path(tempfile.mkdtemp(prefix=f"lost-{i}-"))
                    shutil.copytree(work_folder, lost, dirs_exist_ok=True)
                    sys.stderr.write(f"{kind}, run {i} is lost; see {lost}\n")
                shutil.rmtree(work_folder / "run", ignore_errors=True)
            sums = [sum(getattr(tally, name) for tally in tallies) for name in Tally._fields]
            print_row(kind, len(tallies), *sums)
            is_whole = is_whole and all(tally.is_equal for tally in tallies)
    return 0 if is_whole else 1


def kill_at_random(
    run: Path, length: int, draw: random.Random, duration_s: float, reference: dict
) -> Tally:
    """Kill a run twice, whatever it does, and let it end."""
    in_save = begun_again = 0
    for _ in range(2):
        begun_again += not (run / "config.yaml").exists() and run.exists()
        process = tiny.start(run, length)
        time.sleep(draw.uniform(0.0, duration_s))
        os.kill(process, signal.SIGKILL)
        tiny.wait(process)
        in_save += any((run / "checkpoints").glob(".*")) if run.exists() else 0
    begun_again += not any((run / "checkpoints").glob("[0-9]*"))
    return Tally(2, in_save, begun_again, ends_equal(run, length, reference))


def kill_in_save(
    run: Path, length: int, draw: random.Random, num_steps: int, reference: dict
) -> Tally:
    """Kill a run at one step in one save, and let it end."""
    number = draw.randrange(length)
    step = draw.randrange(num_steps)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    code = tiny.wait(tiny.start(run, length, lambda: at_step(number, step, die)))
    begun_again = not any((run / "checkpoints").glob("[0-9]*"))
    return Tally(
        1, int(code == -signal.SIGKILL), int(begun_again), ends_equal(run, length, reference)
    )


def lose_power(
    run: Path, length: int, draw: random.Random, num_steps: int, reference: dict
) -> Tally:
    """Copy the disk's contents at one step in a save, and resume the copy."""
    number = draw.randrange(length)
    step = draw.randrange(num_steps)
    copied = run.with_name("copied")

    def copy_and_die() -> None:
        disk.copy(run, copied)
        os.kill(os.getpid(), signal.SIGKILL)

    disk = Disk(draw)
    code = tiny.wait(
        tiny.start(run, length, lambda: (disk.watch(), at_step(number, step, copy_and_die))[1])
    )
    begun_again = not any((copied / "checkpoints").glob("[0-9]*"))
    result = Tally(
        1, int(code == -signal.SIGKILL), int(begun_again), ends_equal(copied, length, reference)
    )
    if result.is_equal:
        shutil.rmtree(copied)
    return result


def ends_equal(run: Path, length: int, reference: dict) -> bool:
    """Continue a run to its end. Return whether it equals the uninterrupted run's end."""
    log = run.with_name("log")
    log.unlink(missing_ok=True)
    if (
        run.exists()
        and not (run / "config.yaml").exists()
        and any((run / "checkpoints").glob("[0-9]*"))
    ):
        return False  # checkpoints without settings: a script would not know how to resume
    return tiny.wait(tiny.start(run, length, log=log)) == 0 and tiny.is_equal(
        tiny.final_state(run), reference
    )


class Disk:
    """Tracks the files and names on the disk: those synced since their last change."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        # By inode: size and time of the last change, when synced.
        self._files: dict[int, tuple[int, int]] = {}
        self._names: dict[int, set[str]] = {}  # by a folder's inode

    def watch(self) -> None:
        """Take note of every sync from now on."""
        fsync = os.fsync

        def note(descriptor: int) -> None:
            fsync(descriptor)
            status = os.fstat(descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.is_dir():
                self._names[status.st_ino] = {entry.name for entry in path.iterdir()}
            else:
                self._files[status.st_ino] = (status.st_size, status.st_mtime_ns)

        os.fsync = note

    def copy(self, folder: Path, to: Path) -> None:
        """Copy the disk's contents after a power loss."""
        to.mkdir(exist_ok=True)
        synced = self._names.get(folder.stat().st_ino, set())
        for path in sorted(folder.iterdir()):
            if path.name not in synced and self._draw.random() < 0.5:
                continue
            if path.is_dir():
                self.copy(path, to / path.name)
                continue
            status = path.stat()
            is_synced = self._files.get(status.st_ino) == (status.st_size, status.st_mtime_ns)
            (to / path.name).write_bytes(path.read_bytes() if is_synced else b"")


def at_step(number: int, step: int, act: Callable[[], None]) -> None:
    """Call ``act`` before the file system is asked for the ``step``-th time in save ``number`` of
    this process.
    """
    saves = [-1]
    steps = [0]
    save = checkpoint.save

    def counted(*arguments: object, **keywords: object) -> Path:
        saves[0] = saves[0] + 1
        steps[0] = 0
        try:
            return save(*arguments, **keywords)  # type: ignore[arg-type]
        finally:
            steps[0] = -(10**9)

    def note(event: str, _: object = None) -> None:
        if event not in _EVENTS or saves[0] != number:
            return
        if steps[0] == step:
            steps[0] = -(10**9)  # once
            act()
        steps[0] += 1

    fsync = os.fsync
    os.fsync = lambda descriptor: (note("fsync"), fsync(descriptor))[1]
    checkpoint.save = counted
    sys.addaudithook(note)


def count_steps(folder: Path) -> int:
    """Return how often one save asks the file system for something."""
    log = folder / "steps"

    def prepare() -> None:
        for step in range(200):
            at_step(1, step, lambda: os.write(descriptor, b"x"))

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    assert tiny.wait(tiny.start(folder / "counted", 3, prepare)) == 0
    os.close(descriptor)
    return log.stat().st_size


def print_row(*cells: object) -> None:
    """Write one row of the table."""
    sys.stdout.write(
        "".join(f"{cell!s:<{16 if i == 0 else 14}}" for i, cell in enumerate(cells)).rstrip() + "\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
