"""The protocol of host and worker: messages on a socket, and the layout of the shared memory.

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


class Channel(Connection):
    """Messages to and from the other side. They are JSON, so neither side unpickles the other's."""

    def send(self, obj: dict[str, Any]) -> None:
        """Send a message."""
        self.send_bytes(json.dumps(obj).encode())

    def recv(self) -> dict[str, Any]:
        """Return the next message. Raise EOFError at the end, OSError or ValueError for other
        bytes.
        """
        return json.loads(self.recv_bytes(_LONGEST))
