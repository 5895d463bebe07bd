"""harl_mapush.distributed.stuck: the end of a rank that waits for a dead one."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
import torch.distributed as dist

from harl_mapush.distributed import stuck

ENDED = 5
WORKED = 0


def wait_forever() -> None:
    """Wait in one call that no signal interrupts, as for a GPU."""
    library = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def work() -> None:
    """Work for longer than ``STUCK_S``."""
    end = time.monotonic() + 4 * stuck.STUCK_S
    while time.monotonic() < end:
        pause()


def pause() -> None:
    time.sleep(stuck.STUCK_S / 20)


def pause_for_signal() -> None:
    """Wait until the signal has come."""
    time.sleep(0.4)


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


def code_of(
    main: Callable[[], None], limit_s: float = 20.0, after: Callable[[], None] = lambda: None
) -> int | None:
    """Return the exit code of a process that gets a signal in ``main`` and calls ``after`` outside
    the context, or None after a time.
    """
    process = os.fork()
    if not process:
        try:
            signal.signal(signal.SIGTERM, lambda *_: None)
            with stuck.ended_if_stuck(lambda: os._exit(ENDED)):
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
                main()
            after()
            os._exit(WORKED)
        finally:
            os._exit(99)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck, "STUCK_S", 0.5)


def test_a_rank_that_waits_on_its_gpu_ends() -> None:
    assert code_of(wait_forever) == ENDED


def test_a_rank_that_works_goes_on() -> None:
    assert code_of(work) == WORKED


def test_a_message_on_the_host_ends_by_itself() -> None:
    assert code_of(wait_for_message, limit_s=2.0) is None


def test_nothing_watches_after_the_end() -> None:
    with stuck.ended_if_stuck(lambda: None):
        pass
    assert signal.set_wakeup_fd(-1) == -1


def test_nothing_watches_after_the_end_of_a_rank_with_a_signal() -> None:
    assert code_of(pause_for_signal, after=lambda: time.sleep(3 * stuck.STUCK_S)) == WORKED


def test_further_signals_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    assert code_of(send_signals) == WORKED
    assert capfd.readouterr().err == ""
