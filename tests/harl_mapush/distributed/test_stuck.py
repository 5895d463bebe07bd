"""harl_mapush.distributed.stuck: the end of a rank that waits for a dead one."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch.distributed as dist

from harl_mapush.distributed import stuck

STUCK_S = 0.5
ENDED = 5
WORKED = 0
messages: list[None] = []


def wait_forever() -> None:
    """Wait in one call that no signal interrupts, as for a GPU."""
    library = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def work() -> None:
    """Work for longer than ``STUCK_S``."""
    end = time.monotonic() + 3 * STUCK_S
    while time.monotonic() < end:
        pause()


def pause() -> None:
    time.sleep(STUCK_S / 20)
    messages.append(None)


def pause_for_signal() -> None:
    """Wait until the signal has come."""
    time.sleep(0.4)
    messages.append(None)


def send_signals() -> None:
    """Send signals to this process, in time for the watcher to see each."""
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGTERM)
        pause_for_signal()


def wait_for_message() -> None:
    """Wait in one call of a function from torch.distributed."""
    scope: dict[str, Callable[[Callable[[], object]], None]] = {}
    exec(compile("def meet(wait):\n    wait()", dist.__file__, "exec"), scope)
    lock = threading.Lock()
    lock.acquire()
    scope["meet"](lock.acquire)


class Case(NamedTuple):
    """A process's work within the context and after it, and the time to its end [s]."""

    main: Callable[[], None]
    after: Callable[[], None] = lambda: None
    limit_s: float = 20.0
    has_signal: bool = True


CASES = {
    "waits on its GPU": Case(wait_forever),
    "works": Case(work),
    "waits for a message": Case(wait_for_message, limit_s=3 * STUCK_S),
    "gets a signal before the end": Case(pause_for_signal, lambda: time.sleep(3 * STUCK_S)),
    "gets three signals": Case(send_signals),
    "waits on its GPU without a signal": Case(wait_forever, has_signal=False),
    "works without a signal": Case(work, has_signal=False),
}


class Ending(NamedTuple):
    """A process's exit code, None after its limit, and its last words."""

    code: int | None
    err: str


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ending]:
    """Let all processes wait at the same time."""
    folder = tmp_path_factory.mktemp("stuck")
    start = time.monotonic()
    processes = {name: start_process(case, folder / name) for name, case in CASES.items()}
    return {
        name: Ending(code_of(process, start + CASES[name].limit_s), (folder / name).read_text())
        for name, process in processes.items()
    }


def start_process(case: Case, err: Path) -> int:
    """Start a process that gets a signal in ``main``, unless the case has none."""
    process = os.fork()
    if process:
        return process
    try:
        os.dup2(os.open(err, os.O_CREAT | os.O_WRONLY), 2)
        stuck.STUCK_S = STUCK_S
        stuck._LOOK_S = STUCK_S / 24
        signal.signal(signal.SIGTERM, lambda *_: None)
        patience_s = 99.0 if case.has_signal else STUCK_S
        with stuck.ended_if_stuck(lambda: os._exit(ENDED), patience_s, messages.__len__):
            if case.has_signal:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
            case.main()
        case.after()
        os._exit(WORKED)
    finally:
        os._exit(99)


def code_of(process: int, end: float) -> int | None:
    """Return a process's exit code, or end the process at a time and return None."""
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def test_a_rank_that_waits_on_its_gpu_ends(endings: dict[str, Ending]) -> None:
    assert endings["waits on its GPU"].code == ENDED


def test_a_rank_that_works_goes_on(endings: dict[str, Ending]) -> None:
    assert endings["works"].code == WORKED
    assert endings["works without a signal"].code == WORKED


def test_a_rank_that_waits_for_a_hanging_one_ends(endings: dict[str, Ending]) -> None:
    assert endings["waits on its GPU without a signal"].code == ENDED


def test_a_message_on_the_host_ends_by_itself(endings: dict[str, Ending]) -> None:
    assert endings["waits for a message"].code is None


def test_nothing_watches_after_the_end() -> None:
    with stuck.ended_if_stuck(lambda: None, 99.0, messages.__len__):
        pass
    assert signal.set_wakeup_fd(-1) == -1


def test_a_watched_calls_objects_go_with_it(monkeypatch) -> None:
    """Its tensors would keep a gradient's graph, beside which no CUDA graph can be captured."""
    monkeypatch.setattr(stuck, "_LOOK_S", 0.1)

    def call() -> weakref.ref[threading.Event]:
        kept = threading.Event()
        time.sleep(0.25)
        return weakref.ref(kept)

    with stuck.ended_if_stuck(lambda: None, 99.0, messages.__len__):
        assert call()() is None


def test_nothing_watches_after_the_end_of_a_rank_with_a_signal(endings: dict[str, Ending]) -> None:
    assert endings["gets a signal before the end"].code == WORKED


def test_further_signals_are_silent(endings: dict[str, Ending]) -> None:
    assert endings["gets three signals"] == (WORKED, "")
