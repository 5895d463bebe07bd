"""Jobs in processes of their own: what a job returns does not depend on how many there are, or on
which of them die.
"""

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

TRIES = 3  # of a job whose worker dies
Job = Callable[[Any, int], Any]


class _Worker(NamedTuple):
    number: int
    process: Any
    connection: Connection


def run_jobs(
    function: Job, jobs: Sequence[Any], num_workers: int, say: Callable[[str], None]
) -> Iterator[tuple[int, Any]]:
    """Yield the number of each job and ``function(job, worker)``, in the order in which they are
    done.

    ``num_workers`` processes are spawned; 0 runs the jobs in this one. Jobs and results are plain
    data. A worker that dies is named by ``say`` and replaced, and its job is run again, ``TRIES``
    times at most. Raises ConfigError or SimulatorError where a job did.
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
                with suppress(OSError):  # it died; so says the end of its connection
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
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(function, number, theirs), daemon=True)
    process.start()
    theirs.close()
    return _Worker(number, process, ours)


def _replaced(
    function: Job, worker: _Worker, job: int, num_jobs: int, tries: int, say: Callable[[str], None]
) -> _Worker:
    """Name a worker that died and start another in its place; raise ConfigError if its job has had
    its tries.
    """
    worker.process.join()
    worker.connection.close()
    end = worker.process.exitcode
    how = f"by {signal.Signals(-end).name}" if end < 0 else f"with exit code {end}"
    died = (
        f"worker {worker.number} (process {worker.process.pid}) ended {how} in part {job + 1} "
        f"of {num_jobs}"
    )
    if tries == TRIES:
        raise ConfigError(
            f"--workers: {died}, the third to do so; try fewer workers, or smaller --num_envs"
        )
    say(f"Note: {died}; its episodes are run again.")
    return _start(function, worker.number)


def _work(function: Job, number: int, connection: Connection) -> None:
    """Do jobs until none is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            answer = True, function(job, number)
        except (
            ConfigError,
            SimulatorError,
        ) as error:  # one line for the user, wherever it is raised
            answer = False, error
        except Exception:  # a mistake of ours, which would come again in another process
            answer = False, RuntimeError(traceback.format_exc())
        connection.send(answer)
