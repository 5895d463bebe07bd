"""The protocol of host and worker: messages on two pipes, and the layout of the shared memory.

Both sides import this file, so it runs on Python 3.8 with numpy alone.
"""

from __future__ import annotations

import json
import mmap
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

MAX_ROWS = 32  # physics steps of a control step at most, each with its targets
_ALIGNED = 64  # bytes
_LONGEST = 1 << 28  # bytes of a message


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
    """Return each array's offset [bytes], shape and dtype, and the shared memory's size [bytes]."""
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
    offset = 0
    for name, shape in shapes.items():
        kind = "bool" if name == "failed" else dtype
        places[name] = (offset, shape, kind)
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
        offset += -(-size // _ALIGNED) * _ALIGNED
    return places, offset


def open_memory(fd: int, sizes: Sizes, dtype: str) -> dict[str, np.ndarray]:
    """Return the arrays in the shared memory."""
    places, length = layout(sizes, dtype)
    memory = mmap.mmap(fd, length)
    return {
        name: np.frombuffer(memory, kind, int(np.prod(shape, dtype=np.int64)), offset).reshape(
            shape
        )
        for name, (offset, shape, kind) in places.items()
    }


class Channel:
    """Messages to and from the other side, as JSON."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        """Communicate on two pipes, and close them at the end."""
        self._in = Connection(read_fd, writable=False)
        self._out = Connection(write_fd, readable=False)
        self.poll = self._in.poll  # whether a message arrives in so many seconds
        self.send_bytes = self._out.send_bytes

    def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self._out.send_bytes(json.dumps(message).encode())

    def receive(self) -> dict[str, Any]:
        """Return the next message. Raise EOFError at the end, OSError or ValueError for other
        bytes.
        """
        return json.loads(self.receive_bytes())

    def receive_bytes(self) -> bytes:
        """Return the next bytes. Raise EOFError at the end, OSError for too many."""
        return self._in.recv_bytes(_LONGEST)

    def close(self) -> None:
        """Close both pipes."""
        self._in.close()
        self._out.close()
