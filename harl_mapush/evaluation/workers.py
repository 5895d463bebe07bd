"""Jobs in worker processes. Results depend on neither their number nor crashes."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from mqe.config import ConfigError
from mqe.sim.simulator import SimulatorError

TRIES = 3  # for a job whose worker dies
Job = Callable[[Any, int], Any]


class _Worker(NamedTuple):
    number: int
    process: Any
    connection: Connection


def run_jobs(
    function: Job, jobs: Sequence[Any], num_workers: int, say: Callable[[str], None]
) -> Iterator[tuple[int, Any]]:
    """Yield each job's number and result, in the order of completion.

    A result is ``function(job, worker)``. ``num_workers`` processes are spawned (0: this process
    runs the jobs). Jobs and results are plain data. If a worker dies, ``say`` reports it, and a new
    worker runs its job again, ``TRIES`` times at most. Raises the job's own ConfigError or
    SimulatorError.
    """
    if num_workers == 0:
        yield from ((number, function(job, 0)) for number, job in enumerate(jobs))
        return
    waiting = deque(range(len(jobs)))
    tries = [0] * len(jobs)
    busy: dict[Connection, tuple[_Worker, int]] = {}
    idle = deque(_start(function, number) for number in range(min(num_workers, len(jobs))))
    try:
        while waiting or busy:
            while waiting and idle:
                worker = idle.popleft()
                number = waiting.popleft()
                busy[worker.connection] = worker, number
                tries[number] += 1
                with suppress(OSError):  # a dead worker is noticed when its connection is read
                    worker.connection.send(jobs[number])
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                worker, number = busy.pop(connection)
                try:
                    is_done, result = connection.recv()
                except (EOFError, OSError):
                    idle.append(_replaced(function, worker, number, len(jobs), tries[number], say))
                    waiting.appendleft(number)
                    continue
                if not is_done:
                    raise result
                idle.append(worker)
                yield number, result
    finally:
        for worker in [*idle, *(worker for worker, _ in busy.values())]:
            worker.process.terminate()
            worker.process.join()
            worker.connection.close()


def _start(function: Job, number: int) -> _Worker:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A worker imports the script that started it.
        raise ConfigError(
            "--workers: every worker runs the script itself; begin its last part with if __name__ "
            '== "__main__":'
        )
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(function, number, theirs), daemon=True)
    process.start()
    theirs.close()
    return _Worker(number, process, ours)


def _replaced(
    function: Job, worker: _Worker, job: int, num_jobs: int, tries: int, say: Callable[[str], None]
) -> _Worker:
    """Report a dead worker and start a new one. Raise ConfigError after ``TRIES`` attempts."""
    worker.process.join()
    worker.connection.close()
    code = worker.process.exitcode
    cause = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    died = (
        f"worker {worker.number} (process {worker.process.pid}) ended {cause} in part {job + 1} "
        f"of {num_jobs}"
    )
    if tries == TRIES:
        raise ConfigError(
            f"--workers: {died}, the third to do so; try fewer workers, or smaller --num_envs"
        )
    say(f"Note: {died}; its episodes are run again.")
    return _start(function, worker.number)


def _work(function: Job, number: int, connection: Connection) -> None:
    """Run jobs until the parent closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            answer = True, function(job, number)
        except (ConfigError, SimulatorError) as error:
            answer = False, error
        except Exception:  # a bug: another process would raise it again
            answer = False, RuntimeError(traceback.format_exc())
        connection.send(answer)
