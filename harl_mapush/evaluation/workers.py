"""Jobs in worker processes. Results do not depend on their number."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from harl_mapush.process import end_with_parent
from mqe.config import ConfigError

_END_S = 5.0  # for the end of a worker
_number = 0


def run_jobs(
    function: Callable[[Any], Any], jobs: Sequence[Any], num_workers: int
) -> Iterator[tuple[int, Any]]:
    """Yield each job's number and result, in the order of completion.

    ``num_workers`` processes are spawned (0: this process runs the jobs). Jobs and results are
    plain data. Raises a job's own error, and ConfigError if a worker dies.
    """
    if num_workers == 0:
        yield from ((number, function(job)) for number, job in enumerate(jobs))
        return
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A worker imports the script that started it.
        raise ConfigError(
            "--workers: every worker runs the script itself; begin its last part with if __name__ "
            '== "__main__":'
        )
    context = multiprocessing.get_context("spawn")
    numbered = context.Value("i", 0)
    pool = ProcessPoolExecutor(min(num_workers, len(jobs)), context, _begin, (numbered,))
    workers: list[Any] = []
    try:
        numbers = {}
        for number, job in enumerate(jobs):
            numbers[pool.submit(function, job)] = number
            workers = list((pool._processes or {}).values()) or workers
        for future in as_completed(numbers):
            yield numbers[future], future.result()
    except BrokenProcessPool:
        # The pool terminates the others.
        for worker in workers:
            worker.join(_END_S)
        ended = {worker.exitcode for worker in workers if worker.exitcode}
        codes = sorted(ended - {-signal.SIGTERM} or ended)
        raise ConfigError(
            f"--workers: a worker ended (exit codes {', '.join(map(str, codes))}); try fewer "
            "workers, or smaller --num_envs"
        ) from None
    finally:
        for worker in workers:
            worker.terminate()
        pool.shutdown(cancel_futures=True)


def worker_number() -> int:
    """Return this worker's number, counted from 0. It is 0 outside workers."""
    return _number


def _begin(numbered: Any) -> None:
    """Number this worker, leave Ctrl-C to the parent, and end with it."""
    global _number
    with numbered.get_lock():
        _number = numbered.value
        numbered.value += 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
