"""Ranks as threads in one process, for tests: they meet like processes, without seconds of
startup.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from harl_mapush.distributed.ranks import Ranks

_Result = TypeVar("_Result")


class ThreadRanks(Ranks):
    """A rank in this process. It meets the others through ``table``."""

    def __init__(self, rank: int, table: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(rank, len(table))
        self._table = table
        self._barrier = barrier

    def gather(self, thing: Any) -> list[Any]:
        self._table[self.rank] = thing
        self._barrier.wait()
        things = list(self._table)
        self._barrier.wait()
        return things

    def gather_on_first(self, thing: Any) -> list[Any]:
        things = self.gather(thing)
        return things if self.is_first else []

    def _all_reduce(self, tensor: Tensor, operation: Any = dist.ReduceOp.SUM) -> None:
        parts = torch.stack(self.gather(tensor.clone()))
        tensor.copy_(parts.amax(0) if operation == dist.ReduceOp.MAX else parts.sum(0))


def on_ranks(size: int, work: Callable[[Ranks], _Result]) -> list[_Result]:
    """Return the results of ``work`` on ``size`` ranks. Raise the first exception."""
    table = [None] * size
    barrier = threading.Barrier(size, timeout=60.0)
    results: list[Any] = [None] * size
    problems: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadRanks(rank, table, barrier))
        except BaseException as error:  # to be raised in the test's own thread
            problems.append(error)
            barrier.abort()

    # Of the process: what each thread restores may be another's.
    precision = torch.get_float32_matmul_precision()
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_float32_matmul_precision(precision)
    if problems:
        raise next(
            (
                problem
                for problem in problems
                if not isinstance(problem, threading.BrokenBarrierError)
            ),
            problems[0],
        )
    return results
