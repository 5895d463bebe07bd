"""A Ray cluster as the learner sees it: its address, its nodes and their CPUs."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from harl_mapush.interruption import ENDING_SIGNALS
from mapush.extensions.ray.entry import ADDRESS
from mqe.config import ConfigError

_REACH_S = 5.0  # longest wait for an answer of the cluster's head
# The first bytes of an HTTP/2 connection, with empty settings.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def check_room(num_collectors: int, num_cpus: int, nodes: Mapping[str, float]) -> None:
    """Raise ConfigError if collectors of ``num_cpus`` each do not fit on ``nodes``.

    ``nodes`` has the number of CPUs by node name.
    """
    fit = sum(int(cpus // num_cpus) for cpus in nodes.values())
    if fit >= num_collectors:
        return
    there = ", ".join(f"{name} with {cpus:g}" for name, cpus in nodes.items())
    hint = f"set runner.collectors={fit}" if fit else "lower sim.num_threads"
    raise ConfigError(
        f"runner.collectors={num_collectors} with sim.num_threads={num_cpus} take "
        f"{num_collectors * num_cpus} CPUs, but the Ray cluster has {there}, room for {fit}; start "
        f"more nodes (ray start), or {hint}"
    )


def first_sentence(words: str) -> str:
    """Return a message's first sentence, in one line."""
    return " ".join(words.split()).split(". ")[0].rstrip(".")[:300]


def nodes() -> list[dict[str, Any]]:
    """Return Ray's descriptions of all living nodes."""
    return [node for node in ray.nodes() if node["Alive"]]


def name_of(node: Mapping[str, Any]) -> str:
    """Return a node's address."""
    return f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"


def cpus_of(node: Mapping[str, Any]) -> float:
    """Return a node's number of CPUs."""
    return node["Resources"].get("CPU", 0.0)


def connect(**own_settings: Any) -> None:
    """Join the cluster at RAY_ADDRESS, or start Ray on this machine alone.

    ``own_settings`` apply to Ray on this machine alone. Raises ConfigError if the cluster cannot be
    reached, or if others can read its token.
    """
    address = os.environ.get(ADDRESS)
    if address is not None:
        check_address(address)
    if os.environ.get("RAY_AUTH_MODE") == "token":
        check_token(Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser())
    is_own = address in (None, "local")
    settings: dict[str, Any] = own_settings | {"include_dashboard": False} if is_own else {}
    try:
        ray.init(
            address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **settings
        )
    except (RuntimeError, ConnectionError, ValueError, OSError) as error:
        raise ConfigError(
            f"{ADDRESS}={address}: {first_sentence(str(error))}; start Ray on this machine as "
            "well (ray start --address HOST:PORT), with the same versions of Ray and Python, and "
            "with RAY_AUTH_MODE=token if the cluster has a token"
        ) from None


def check_token(path: Path) -> None:
    """Raise ConfigError if other users can read the cluster's token.

    The token allows its holder to run programs on the cluster.
    """
    if path.is_file() and path.stat().st_mode & 0o077:
        raise ConfigError(
            f"{path}: other users can read the token of the Ray cluster; chmod 600 {path}, and "
            "take a new token if this machine has other users"
        )


def check_address(address: str) -> None:
    """Raise ConfigError if no cluster answers. Ray itself would try for a minute."""
    if address in ("auto", "local"):
        return
    if "://" in address or not address.rpartition(":")[2].isdigit():
        raise ConfigError(
            f"{ADDRESS}={address}: use HOST:PORT of the cluster's head, for instance HOST:6379, "
            "or auto"
        )
    if not answers(address):
        raise ConfigError(
            f"{ADDRESS}={address}: no Ray answers there; start it with ray start --head --port "
            "PORT, check address and firewall, or unset the variable to use this machine alone"
        )


def answers(address: str) -> bool:
    """Return whether a server answers and may be Ray.

    It must speak HTTP/2, as gRPC does. Behind TLS any server is accepted.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _REACH_S) as connection:
            connection.sendall(_HELLO)
            if os.environ.get("RAY_USE_TLS") == "1":
                return True
            frame_type = connection.recv(9)[3:4]
            return frame_type == b"\x04"  # a frame of settings
    except (OSError, OverflowError):
        return False


@contextmanager
def signal_handlers_kept() -> Iterator[None]:
    """Context manager: at its end restore the signal handlers replaced by Ray."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
