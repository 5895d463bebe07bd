"""The start of ranks under ``torchrun``, their meeting, and the end of all after a rank's death.

``torchrun`` ends all ranks if one dies. A message to a hanging rank fails after some time. With
``--max-restarts``, ``torchrun`` starts the ranks again, and they resume from the run's newest
checkpoint.
"""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from harl_mapush import process
from harl_mapush.distributed.ranks import ALONE, RankLostError, Ranks
from mqe.config import ConfigError
from mqe.cores import num_cores

# Exit codes: a rank ends after another rank died or hung, or after a mistake in the settings or a
# refusal of the system.
RANK_LOST = 5
MISTAKE = 2

_POLL_S = 0.05  # time between two reads of the store
# Longest wait for the other ranks, while one of them compiles, evaluates or saves.
_PATIENCE = timedelta(minutes=10)
# Longest wait of a rank with an error; the others may still be importing torch.
_PATIENCE_AT_AN_END = timedelta(seconds=60)
_READY = "ready"  # published instead of an error

# Files in torchrun's folder of this launch, for its later starts.
_RUN = "mapush-run"  # the run's folder
_START = "mapush-start"  # the time of the first start [s, monotonic clock]
_END = "mapush-end"  # the exit code, if a restart would end alike


class Launch(NamedTuple):
    """This process's rank, rank count and restart count under ``torchrun``.

    The defaults describe a single process without ``torchrun``.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    restarts: int = 0

    @classmethod
    def of_environment(cls) -> Launch:
        """Read rank, sizes and restarts from torchrun's environment variables."""
        names = (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "TORCHELASTIC_RESTART_COUNT",
        )
        defaults = ["", "", "", "1", "0"]
        texts = [os.environ.get(name, text) for name, text in zip(names, defaults, strict=True)]
        if not all(re.fullmatch("[0-9]{1,9}", text) for text in texts):
            return cls()
        launch = cls(*map(int, texts))
        return launch if launch.local_size > 0 else cls()

    def device(self, device: torch.device) -> torch.device:
        """Return this rank's device, given the device for a single process.

        Raises ConfigError if the machine has fewer GPUs than ranks.
        """
        if self.size == 1 or device.type == "cpu":
            return device
        count = torch.cuda.device_count()
        if self.local_size > count:
            raise ConfigError(
                f"{self.local_size} ranks on this machine, but {count} GPU(s): use "
                f"--nproc_per_node {count}, or --device cpu"
            )
        return torch.device("cuda", self.local_rank)

    def threads(self) -> int:
        """Return the number of cores for one rank."""
        return max(1, num_cores() // self.local_size)

    def remember(self, run: Path) -> None:
        """Store the run's folder for a restart of these processes."""
        if self.local_rank == 0:
            _write_note(_RUN, str(run.resolve()))

    def remembered(self) -> Path | None:
        """Return the run of these processes' earlier start, or None without one."""
        run = self._read_note(_RUN)
        return None if run is None else Path(run)

    def first_start(self) -> float:
        """Return the time of these processes' first start [s, monotonic clock], or now if
        unknown.
        """
        start = self._read_note(_START)
        if start is not None:
            return float(start)
        now = time.monotonic()
        if self.local_rank == 0:
            _write_note(_START, repr(now))
        return now

    def end_for_good(self, code: int) -> int:
        """Make all later starts in this launch end at once with ``code``. Return ``code``."""
        _write_note(_END, str(code))
        return code

    def ended_for_good(self) -> int | None:
        """Return this launch's exit code if an earlier start ended for good, else None."""
        code = self._read_note(_END)
        return None if code is None else int(code)

    def _read_note(self, name: str) -> str | None:
        """Return the note from these processes' earlier start, or None without one."""
        note = _note(name)
        if self.restarts == 0 or note is None or not note.is_file():
            return None
        # The file is empty if the disk was full.
        return note.read_text(encoding="utf-8") or None


def name_rank(program: str) -> str:
    """Return the program's name for messages, with the rank if it is not 0."""
    launch = Launch.of_environment()
    return f"{program} (rank {launch.rank})" if launch.rank else program


def write_error(program: str, line: str) -> None:
    """Write this process's error on stderr, unless a rank with a lower number has the same one.

    Most errors before the ranks have met are those of all ranks. Once they have met, one rank
    raises for all of them.
    """
    launch = Launch.of_environment()
    if launch.size > 1 and not dist.is_initialized():
        with suppress(RuntimeError):  # the store and all other ranks have ended
            _, lines = _compare(launch, line, _PATIENCE_AT_AN_END)
            if line in lines[: launch.rank]:
                return
    process.write_error(program, line)


@contextmanager
def joined(
    launch: Launch, device: torch.device, how_to_resume: Callable[[], str]
) -> Iterator[Ranks]:
    """Context manager: yield this rank among all ranks.

    ``how_to_resume`` returns the hint for the user if a rank is lost.
    """
    if launch.size == 1:
        yield ALONE
        return
    on_gpu = device.type == "cuda"
    if on_gpu:
        # Otherwise all ranks would send their messages from the first GPU.
        torch.cuda.set_device(device)
    store, mistakes = _compare(launch, _READY, _PATIENCE)
    if set(mistakes) - {_READY}:
        raise SystemExit(MISTAKE)  # the rank with the mistake reports it

    # The store still has the entries of earlier starts, so every start has a prefix of its own.
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=PrefixStore(f"learning/{launch.restarts}", store),
        rank=launch.rank,
        world_size=launch.size,
        timeout=_PATIENCE,
        device_id=device if on_gpu else None,
    )
    ranks = Ranks(launch.rank, launch.size, dist.new_group(backend="gloo", timeout=_PATIENCE))

    # Recorded graphs need resources set up by the first message.
    if on_gpu:
        ranks.sum_(torch.zeros(1, device=device))
        torch.cuda.synchronize(device)
    try:
        yield ranks
        if ranks.ends_together:
            ranks.gather(None)  # no rank ends while another one is still writing
    except RankLostError as error:
        if _is_first_to_report(store, launch.restarts):
            sys.stderr.write(f"{error}; all ranks end; {how_to_resume()}\n")
        raise SystemExit(RANK_LOST) from None


def _is_first_to_report(store: Any, restarts: int) -> bool:
    """Return whether no other rank has reported a lost rank."""
    try:
        return store.add(f"lost/{restarts}", 1) == 1
    except RuntimeError:  # the store has ended
        return True


def run_to_exit(main: Callable[[], int]) -> int:
    """Run ``main`` and return its exit code. With several ranks, exit instead of returning.

    Ranks exit at once because NCCL would wait for recorded graphs. torchrun may start the processes
    again although the run has ended for good. Then the result is the earlier exit code. Exit code 2
    before the run has a folder is such an end, since the settings would fail again. Later the cause
    may be a passing problem, such as a full disk, and the next start tries once more.
    """
    launch = Launch.of_environment()
    ended = launch.ended_for_good()
    if ended is not None:
        if launch.rank == 0:
            sys.stderr.write(
                f"Restart {launch.restarts} ends at once: the run ended with exit code "
                f"{ended} (see above).\n"
            )
        return ended

    code = 1
    try:
        code = main()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        if not dist.is_initialized():
            raise
    except Exception:
        if not dist.is_initialized():
            raise
        traceback.print_exc()
    finally:
        run = _note(_RUN)
        if code == MISTAKE and run is not None and not run.is_file():
            launch.end_for_good(code)

    if dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _compare(launch: Launch, line: str, patience: timedelta) -> tuple[Any, list[str | None]]:
    """Publish ``line``, this rank's error or ``_READY``. Return the store and all ranks' lines.

    A rank's line is None if it published none within ``patience``.
    """
    store: Any = next(rendezvous("env://", timeout=patience))[0]
    said = PrefixStore(f"before/{launch.restarts}", store.clone())
    said.set(str(launch.rank), line)
    names = [str(rank) for rank in range(launch.size)]
    end = time.monotonic() + patience.total_seconds()
    while not said.check(names) and time.monotonic() < end:
        time.sleep(_POLL_S)  # the store's own wait would delay signals

    lines = [said.get(name).decode() if said.check([name]) else None for name in names]
    return store, lines


def _write_note(name: str, text: str) -> None:
    note = _note(name)
    if note is not None:
        with suppress(OSError):
            note.write_text(text, encoding="utf-8")


def _note(name: str) -> Path | None:
    """Return the path of a launch's note, beside torchrun's folders for single starts."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    attempt = None if path is None else Path(path).parent.parent
    if attempt is not None and attempt.name.startswith("attempt"):
        return attempt.parent / name
    return None
