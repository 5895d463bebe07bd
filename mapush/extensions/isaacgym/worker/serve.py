"""The worker's side: an engine follows the host's messages. Runs on Python 3.8."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mapush.extensions.isaacgym.worker.protocol import Channel, Sizes, open_memory


class Refused(Exception):  # noqa: N818, an answer
    """A request beyond the engine, as a message for the user."""


class Engine(Protocol):
    """The result of ``make_engine(scene, sizes, views)`` in a worker's module.

    ``views`` are the arrays in the shared memory.

    The host may change qpos, qvel, ctrl and xfrc_applied between steps. A step sets these arrays,
    sensordata, memory and failed. Quaternions are wxyz, and joints are in the scene's order.
    """

    def set_field(self, name: str, values: np.ndarray) -> None:
        """Set a model field's values (N, ...) by MuJoCo's name. Raise Refused if impossible."""
        ...

    def step(self, num_steps: int, num_rows: int) -> None:
        """Advance all worlds. Step k follows ``targets[k]`` if ``num_rows``, else ``ctrl``."""
        ...

    def close(self) -> None:
        """End the engine itself."""
        ...


def serve(
    make_engine: Callable[[dict[str, Any], Sizes, dict[str, np.ndarray]], Engine],
    channel: Channel,
    memory_fd: int,
) -> None:
    """Answer messages until ``close``, an error, or the host's end. An error is answered, too."""
    try:
        message = channel.recv()
        sizes = Sizes(*message["sizes"])
        views = open_memory(memory_fd, sizes, message["dtype"])
        engine = make_engine(message["scene"], sizes, views)
        while message["do"] != "close":
            channel.send({})
            message = channel.recv()
            if message["do"] == "step":
                engine.step(message["steps"], message["rows"])
            elif message["do"] == "set_field":
                values = np.frombuffer(channel.recv_bytes(), message["dtype"])
                engine.set_field(message["name"], values.reshape(message["shape"]))
        engine.close()
        channel.send({})
    except EOFError:
        return
    except Refused as error:
        channel.send({"refused": str(error)})
    except BaseException as error:  # noqa: B902, also what ends a program: the host must hear of it
        trace = traceback.extract_tb(error.__traceback__)
        position = f"{os.path.basename(trace[-1].filename)}:{trace[-1].lineno}" if trace else "?"
        channel.send(
            {"error": f"{type(error).__name__}: {' '.join(str(error).split())} ({position})"}
        )
