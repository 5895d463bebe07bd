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
_LONGEST = 1 << 28  # bytes of a message


class Sizes(NamedTuple):
    """Sizes of the shared arrays: the worlds, and the numbers of one world, in MuJoCo's names."""

    num_envs: int
    nq: int
    nv: int
    nu: int
    nmocap: int
    nbody: int
    nsensordata: int
    nmemory: int  # what the engine carries from step to step beyond qpos and qvel


def layout(sizes: Sizes, dtype: str) -> np.dtype:
    """Return the shared memory's arrays as one structured type."""
    n = sizes.num_envs
    return np.dtype(
        [
            ("qpos", dtype, (n, sizes.nq)),
            ("qvel", dtype, (n, sizes.nv)),
            ("ctrl", dtype, (n, sizes.nu)),
            ("targets", dtype, (MAX_ROWS, n, sizes.nu)),
            ("mocap_pos", dtype, (n, sizes.nmocap, 3)),
            ("xfrc_applied", dtype, (n, sizes.nbody, 6)),
            ("sensordata", dtype, (n, sizes.nsensordata)),
            ("memory", dtype, (n, sizes.nmemory)),
            ("failed", "bool", (n,)),
        ]
    )


def open_memory(fd: int, sizes: Sizes, dtype: str) -> dict[str, np.ndarray]:
    """Return the arrays of ``layout`` by name, in the shared memory with the descriptor ``fd``."""
    kind = layout(sizes, dtype)
    record = np.frombuffer(mmap.mmap(fd, kind.itemsize), kind)
    return {name: record[name][0] for name in kind.names or ()}


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
