"""The TensorBoard file with a run's curves. A full disk or a lost folder does not end the run."""

from __future__ import annotations

import io
import itertools
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.record_writer import RecordWriter

_MOST_BYTES = 64 * 2**20  # limit of points that wait to be written; the oldest are dropped first
_INTERVAL_S = 10.0  # time between two writes
_PREFIX = "events.out.tfevents."  # start of a file name
_numbers = itertools.count()


class Curves:
    """Collects points and writes them every few seconds, and on request.

    After a failed write the points are kept, up to a limit, and written at the next successful
    write.
    """

    def __init__(
        self, folder: Path, say: Callable[[str], None], purge_step: int | None = None
    ) -> None:
        """Write into ``folder``. TensorBoard hides older points at ``purge_step`` and beyond."""
        self._folder = folder
        self._say = say
        self._purge_step = purge_step
        self._path: Path | None = None
        self._descriptor: int | None = None
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        self._num_lost = 0
        self._is_failing = False
        self._written_at = time.monotonic()
        self._clock = time.time() - self._written_at  # Unix time at the monotonic zero

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Add one point to each curve."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self.add_summary(Summary(value=values), step)

    def add_summary(self, summary: Summary, step: int = 0) -> None:
        """Add another TensorBoard summary."""
        self._waiting.append(_record(Event(wall_time=self._now(), step=step, summary=summary)))
        self._num_bytes += len(self._waiting[-1])
        while self._num_bytes > _MOST_BYTES:
            self._num_bytes -= len(self._waiting.popleft())
            self._num_lost += 1
        if time.monotonic() - self._written_at >= _INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        """Write the buffered points. Report the first failure, and the first success after it."""
        self._written_at = time.monotonic()
        if not self._waiting:
            return
        try:
            self._write(b"".join(self._waiting))
        except OSError as error:
            if not self._is_failing:
                reason = error.strerror or type(error).__name__
                self._say(
                    f"Note: the curves in {self._folder} cannot be written ({reason}); training "
                    "continues, and they are written as soon as that is possible again."
                )
            self._is_failing = True
            return
        if self._is_failing:
            lost = f", except for the oldest {self._num_lost} points" if self._num_lost else ""
            self._say(f"Note: the curves in {self._folder} are written again{lost}.")
        self._is_failing = False
        self._num_bytes = 0
        self._num_lost = 0
        self._waiting.clear()

    def close(self) -> None:
        """Write the buffered points, or report the number of lost ones."""
        self.flush()
        if self._waiting:
            self._say(
                f"Note: {len(self._waiting) + self._num_lost} points of each curve could not be "
                "written."
            )
        self._close_file()

    def _write(self, data: bytes) -> None:
        """Append all ``data``, or after an error leave the file unchanged."""
        descriptor = self._open()
        size = os.fstat(descriptor).st_size
        header = self._header() if size == 0 else b""
        try:
            rest = memoryview(header + data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            os.ftruncate(descriptor, size)
            raise
        self._purge_step = None

    def _open(self) -> int:
        """Return the open file. Open a new one if there is none, or if it was moved or deleted."""
        if self._descriptor is not None and not (self._path is not None and self._path.exists()):
            self._close_file()
        if self._descriptor is None:
            name = (
                f"{_PREFIX}{self._begin():010d}.{socket.gethostname()}."
                f"{os.getpid()}.{next(_numbers)}"
            )
            self._path = self._folder / name
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        return self._descriptor

    def _begin(self) -> int:
        """Return the time in the next file's name [s], later than in all other files in the folder.

        TensorBoard reads files in the order of their names. If the clock was set back between two
        sessions, the later session's points would count as replaced.
        """
        names = [path.name for path in self._folder.glob(f"{_PREFIX}*")]
        times = [name.removeprefix(_PREFIX).partition(".")[0] for name in names]
        latest = max((int(text) for text in times if text.isdecimal()), default=0)
        return max(int(self._now()), latest + 1)

    def _now(self) -> float:
        """Return the time [s] by a clock without jumps during the training."""
        return self._clock + time.monotonic()

    def _header(self) -> bytes:
        version = _record(Event(wall_time=self._now(), file_version="brain.Event:2"))
        if self._purge_step is None:
            return version
        start = SessionLog(status=SessionLog.START)
        return version + _record(
            Event(wall_time=self._now(), step=self._purge_step, session_log=start)
        )

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None
        self._path = None


def _record(event: Event) -> bytes:
    """Return an event with its length and checksums, in the file's format."""
    buffer = io.BytesIO()
    RecordWriter(buffer).write(event.SerializeToString())
    return buffer.getvalue()
