"""TensorBoard files with a run's curves. A full disk or a lost folder does not end the run."""

import io
import itertools
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.record_writer import RecordWriter

from harl_mapush.runs.provenance import LostFolderError
from mqe.config import ConfigError, reason_of

_MOST_WAITING = 20_000  # events that wait to be written; the oldest are dropped first
_INTERVAL_S = 10.0  # time between two writes
_numbers = itertools.count()


class Curves:
    """Collects points and writes them every few seconds, and on request.

    After a failed write the points are kept, up to a limit, and written at the next successful
    write.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        purge_step: int | None = None,
        check_folder: Callable[[], object] = lambda: None,
    ) -> None:
        """Write into ``folder``. TensorBoard hides older points at ``purge_step`` and beyond.

        ``check_folder`` raises LostFolderError if another run has taken the folder.
        """
        host = socket.gethostname()
        name = f"events.out.tfevents.{time.time():010.0f}.{host}.{os.getpid()}.{next(_numbers)}"
        self._path = folder / name
        self._say = say
        self._check_folder = check_folder
        self._header = _record(file_version="brain.Event:2")
        if purge_step is not None:
            session = SessionLog(status=SessionLog.START)
            self._header += _record(step=purge_step, session_log=session)
        self._waiting: deque[bytes] = deque(maxlen=_MOST_WAITING)
        self._is_failing = False
        self._written_at = time.monotonic()

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Add one point to each curve."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._waiting.append(_record(step=step, summary=Summary(value=values)))
        if time.monotonic() - self._written_at >= _INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        """Write the waiting points. Report the first of several failures."""
        self._written_at = time.monotonic()
        if not self._waiting:
            return
        try:
            self._check_folder()
            self._append(b"".join(self._waiting))
        except LostFolderError:
            self._report_failure("another run has taken the folder")
            return
        except OSError as error:
            self._report_failure(reason_of(error))
            return
        self._is_failing = False
        self._waiting.clear()

    def _report_failure(self, reason: str) -> None:
        """Report the first failure after a successful write."""
        if not self._is_failing:
            self._say(
                f"Note: the curves in {self._path.parent} cannot be written ({reason}); "
                "training continues, and they are written as soon as that is possible again."
            )
        self._is_failing = True

    def _append(self, data: bytes) -> None:
        """Append all ``data``, or after an error leave the file unchanged."""
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            rest = memoryview(data if size else self._header + data)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(size)
                raise


def read_points(folder: Path) -> dict[str, list[Any]]:
    """Return a run's points by tag, each with ``step``, ``wall_time`` [s] and ``value``.

    Raises ConfigError if a file of curves is no regular file.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for path in folder.glob("*tfevents*"):
        if path.exists() and not path.is_file():  # a pipe or a device would be read for ever
            raise ConfigError(f"{path} is no regular file; remove it")
    # Size 0 keeps all points, except those replaced by a later run over their steps.
    log = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    log.Reload()
    return {tag: log.Scalars(tag) for tag in log.Tags()["scalars"]}


def _record(**content: object) -> bytes:
    """Return an event with its length and checksums, in the file's format."""
    buffer = io.BytesIO()
    event = Event(wall_time=time.time(), **content)
    RecordWriter(buffer).write(event.SerializeToString())
    return buffer.getvalue()
