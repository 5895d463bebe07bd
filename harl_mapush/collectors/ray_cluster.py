"""A Ray cluster, seen from the learner: who answers at an address, which nodes there are, and what
fits on them.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray

from harl_mapush.collectors.launcher import ADDRESS
from harl_mapush.interruption import ENDING_SIGNALS
from mqe.config import ConfigError

_REACH_S = 5.0  # that the cluster's head may take to answer
# Of HTTP/2, with empty settings.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def check_room(num_collectors: int, num_cpus: int, nodes: Mapping[str, float]) -> None:
    """Raise ConfigError where collectors of ``num_cpus`` each do not fit on ``nodes``, CPUs by
    name.
    """
    fit = sum(int(cpus // num_cpus) for cpus in nodes.values())
    if fit >= num_collectors:
        return
    there = ", ".join(f"{name} with {cpus:g}" for name, cpus in nodes.items())
    hint = f"set runner.collectors={fit}" if fit else "lower sim.num_threads"
    raise ConfigError(
        f"runner.collectors={num_collectors} with sim.num_threads={num_cpus} take "
        f"{num_collectors * num_cpus} CPUs, "
        f"but the Ray cluster has {there}: room for {fit}; start more nodes (ray start), or {hint}"
    )


def first_sentence(words: str) -> str:
    """Return the first sentence of a message, in one line."""
    return " ".join(words.split()).split(". ")[0].rstrip(".")[:300]


def nodes() -> list[dict[str, Any]]:
    """Return the nodes that are alive, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def name_of(node: Mapping[str, Any]) -> str:
    """Return a node's address."""
    return f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"


def cpus_of(node: Mapping[str, Any]) -> float:
    """Return the number of a node's CPUs."""
    return node["Resources"].get("CPU", 0.0)


def connect(**own: Any) -> None:
    """Join the cluster that RAY_ADDRESS names, or start a Ray on this machine alone with the
    settings ``own``.

    Raises ConfigError where it cannot be reached.
    """
    address = os.environ.get(ADDRESS)
    if address is not None:
        check_address(address)
    settings: dict[str, Any] = {} if address else own | {"include_dashboard": False}
    try:
        ray.init(
            address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **settings
        )
    except (RuntimeError, ConnectionError, ValueError, OSError) as error:
        raise ConfigError(
            f"{ADDRESS}={address}: {first_sentence(str(error))}; start Ray on this machine as "
            "well (ray start "
            "--address HOST:PORT), with the same Ray and Python, and RAY_AUTH_MODE=token where "
            "it has a token"
        ) from None


def check_address(address: str) -> None:
    """Raise ConfigError where nobody answers; Ray itself would try for a minute."""
    if address in ("auto", "local"):
        return
    if "://" in address or not address.rpartition(":")[2].isdigit():
        raise ConfigError(
            f"{ADDRESS}={address}: write HOST:PORT of the cluster's head, HOST:6379 for "
            "instance, or auto"
        )
    if not answers(address):
        raise ConfigError(
            f"{ADDRESS}={address}: no Ray answers there; start it with ray start --head --port "
            "PORT, look at address "
            "and firewall, or unset it for a Ray on this machine alone"
        )


def answers(address: str) -> bool:
    """Return whether something answers that may be Ray: it speaks HTTP/2, as gRPC does, or is to
    be reached by TLS.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _REACH_S) as connection:
            connection.sendall(_HELLO)
            # Settings.
            return os.environ.get("RAY_USE_TLS") == "1" or connection.recv(9)[3:4] == b"\x04"
    except (OSError, OverflowError):
        return False


@contextmanager
def signal_handlers_kept() -> Iterator[None]:
    """Put the handlers of signals back that Ray replaces."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
