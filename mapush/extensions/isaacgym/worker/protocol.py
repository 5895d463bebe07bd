"""The protocol of host and worker: messages on two pipes, and the layout of the shared memory.

Both sides import this file, so it runs on Python 3.8 with numpy alone.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

VERSION = 1  # of messages and layout; both sides must have the same
MAX_ROWS = 8  # physics steps with targets of their own that fit into one message
_MAGIC = b"MAPUSH\0\0"
_HEADER = struct.Struct("<8sII8Q")  # magic, version, bytes a number, sizes
_FIRST = 4096  # where the arrays begin
_ALIGNED = 64  # bytes
_MESSAGE = struct.Struct("<4sIQ")  # mark, length of the JSON, length of what follows it
_MARK = b"MPSH"
# Without JSON: a step, two numbers in place of lengths, and its answer.
_STEP = b"STEP"
_DONE = b"DONE"
_LONGEST = 1 << 32  # bytes of a message

Wait = Callable[[int], None]  # return when the pipe is ready, or raise


class ProtocolError(Exception):
    """The other side broke the protocol, or has gone."""


class Sizes(NamedTuple):
    """Number of worlds, and of a world's coordinates, in MuJoCo's names."""

    num_envs: int
    nq: int
    nv: int
    nu: int
    nmocap: int
    nbody: int
    nsensordata: int
    nmemory: int  # what the engine carries from step to step beyond qpos and qvel


def layout(sizes: Sizes, dtype: str) -> tuple[dict[str, tuple[int, tuple[int, ...], str]], int]:
    """Return offset, shape and dtype of the arrays by name, and the size of the memory [bytes]."""
    n = sizes.num_envs
    shapes: dict[str, tuple[int, ...]] = {
        "qpos": (n, sizes.nq),
        "qvel": (n, sizes.nv),
        "ctrl": (n, sizes.nu),
        "targets": (MAX_ROWS, n, sizes.nu),
        "mocap_pos": (n, sizes.nmocap, 3),
        "xfrc_applied": (n, sizes.nbody, 6),
        "sensordata": (n, sizes.nsensordata),
        "memory": (n, sizes.nmemory),
        "failed": (n,),
    }
    places = {}
    offset = _FIRST
    for name, shape in shapes.items():
        kind = "bool" if name == "failed" else dtype
        places[name] = (offset, shape, kind)
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
        offset += -(-size // _ALIGNED) * _ALIGNED
    return places, offset


def create_memory(fd: int, sizes: Sizes, dtype: str) -> dict[str, np.ndarray]:
    """Set the file's length and header. Return the arrays in it."""
    os.ftruncate(fd, layout(sizes, dtype)[1])
    os.pwrite(fd, _HEADER.pack(_MAGIC, VERSION, np.dtype(dtype).itemsize, *sizes), 0)
    return open_memory(fd, sizes, dtype)


def open_memory(fd: int, sizes: Sizes, dtype: str) -> dict[str, np.ndarray]:
    """Return the arrays in the shared memory. Raise ProtocolError for another header."""
    places, length = layout(sizes, dtype)
    header = _HEADER.pack(_MAGIC, VERSION, np.dtype(dtype).itemsize, *sizes)
    if os.fstat(fd).st_size != length or os.pread(fd, _HEADER.size, 0) != header:
        raise ProtocolError(f"the shared memory has another layout than version {VERSION}'s")
    memory = mmap.mmap(fd, length)
    return {
        name: np.frombuffer(memory, kind, int(np.prod(shape, dtype=np.int64)), offset).reshape(
            shape
        )
        for name, (offset, shape, kind) in places.items()
    }


class Channel:
    """Messages to and from the other side: JSON, and bytes after it."""

    def __init__(self, read_fd: int, write_fd: int, wait: Wait | None = None) -> None:
        """Communicate on two pipes. ``wait`` is called before every read and write."""
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._wait = wait

    def send(self, message: dict[str, Any], payload: bytes = b"") -> None:
        """Send a message."""
        text = json.dumps(message).encode()
        rest = memoryview(_MESSAGE.pack(_MARK, len(text), len(payload)) + text + payload)
        while rest:
            if self._wait is not None:
                self._wait(self._write_fd)
            rest = rest[os.write(self._write_fd, rest[:65536]) :]

    def send_step(self, num_steps: int, num_rows: int) -> None:
        """Send the message for a step. Between messages the empty pipe has room for it."""
        os.write(self._write_fd, _MESSAGE.pack(_STEP, num_steps, num_rows))

    def send_done(self) -> None:
        """Send the answer to a step."""
        os.write(self._write_fd, _MESSAGE.pack(_DONE, 0, 0))

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Return the next message. Raise ProtocolError for other bytes, EOFError at the end."""
        mark, length, further = _MESSAGE.unpack(self._exactly(_MESSAGE.size))
        if mark == _STEP:
            return {"do": "step", "steps": length, "rows": further}, b""
        if mark == _DONE:
            return {"ok": "step"}, b""
        if mark != _MARK or length + further > _LONGEST:
            raise ProtocolError(f"bytes on the pipe that are no message: {mark!r}")
        try:
            message = json.loads(self._exactly(length).decode())
        except (ValueError, RecursionError):
            raise ProtocolError("a message on the pipe that is no JSON") from None
        if not isinstance(message, dict):
            raise ProtocolError(f"a message on the pipe that is no object: {message!r:.40}")
        return message, self._exactly(further)

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            if self._wait is not None:
                self._wait(self._read_fd)
            part = os.read(self._read_fd, min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
