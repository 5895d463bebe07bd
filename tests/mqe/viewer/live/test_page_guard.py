"""The viewer's page over its real server: other pages neither read nor steer it."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from websockets.datastructures import Headers

from mqe.config import ConfigError
from mqe.viewer.live import studio
from mqe.viewer.live.page_guard import refusal
from tests.support.paths import ROOT

HEADER_TIMEOUT_S = 0.5  # [s] in these tests
# Serves a page until its standard input closes; a process can serve one only.
SERVER = f"""
import sys
import torch
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg
from mqe.viewer.live import page_guard, studio
from mqe.viewer.live.player import Player

page_guard.HEADER_TIMEOUT_S = {HEADER_TIMEOUT_S}
env = make_env(EnvCfg(num_envs=1), SimCfg(name="mujoco", device="cpu"), PushCfg(), seed=1)
player = Player(env, {{"zero": lambda obs: torch.zeros(*obs.shape[:2], 3)}})
own = studio._listening_socket(0)
with studio.served(own, studio.Panel(player)):
    print(own.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Return the port of a page that is served."""
    words = [sys.executable, "-c", SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, cwd=ROOT, **pipes) as server:
        yield int(server.stdout.readline())
        server.stdin.close()
        assert server.wait(20.0) == 0


def ask(port: int, path: str, host: str | None = None, **headers: str) -> bytes:
    """Return the head of the server's answer to a request."""
    names = {"Host": host or f"127.0.0.1:{port}"}
    names |= {key.replace("_", "-"): value for key, value in headers.items()}
    lines = [f"GET {path} HTTP/1.1", *(f"{key}: {value}" for key, value in names.items())]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as own:
        own.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = own.recv(4096)
            if not part:
                break
            answer += part
    return answer.split(b"\r\n\r\n")[0]


def upgrade(port: int, path: str, **headers: str) -> bytes:
    """Return the head of the answer to a request for a web socket."""
    return ask(
        port,
        path,
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Version="13",
        Sec_WebSocket_Key=base64.b64encode(os.urandom(16)).decode(),
        **headers,
    )


@pytest.mark.parametrize("path", ["/", "/model", "/web_client.js"])
def test_a_request_under_a_foreign_name_is_forbidden(port: int, path: str) -> None:
    assert b"403 Forbidden" in ask(port, path, f"evil.example:{port}")
    assert b"403" not in ask(port, path)
    assert b"403" not in ask(port, path, "localhost:9000")  # a tunnel's port


@pytest.mark.parametrize("path", ["/", "/state?sid=x", "/ui?sid=x"])
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_a_foreign_page_is_forbidden(port: int, path: str, origin: str) -> None:
    assert b"403 Forbidden" in upgrade(port, path, Origin=origin)


def test_the_own_page_gets_its_web_sockets(port: int) -> None:
    assert b"101 Switching" in upgrade(port, "/state?sid=x", Origin=f"http://127.0.0.1:{port}")
    assert b"101 Switching" in upgrade(port, "/ui?sid=x", Origin=f"http://127.0.0.1:{port}")


def test_no_answer_is_shared_with_other_origins_or_framed(port: int) -> None:
    answers = [ask(port, path) for path in ("/", "/model", "/web_client.js")]
    answers.append(upgrade(port, "/state?sid=y"))
    for answer in answers:
        head = answer.lower()
        assert b"access-control-allow-origin" not in head
        assert b"cross-origin-resource-policy: same-origin" in head
        assert b"frame-ancestors 'none'" in head


def test_the_page_takes_no_files(port: int) -> None:
    assert b"403 Forbidden" in upgrade(port, "/drop?sid=x", Origin=f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_a_connection_without_a_whole_header_ends(port: int, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as own:
        own.sendall(start)
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            assert own.recv(1) == b""
        assert 0.5 * HEADER_TIMEOUT_S < time.monotonic() - began < 10 * HEADER_TIMEOUT_S


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["127.0.0.1", "evil.example"],
        ["[::1"],
        ["[::1]evil.example"],
        ["evil.example@localhost"],
        ["127.0.0.1.nip.io"],
    ],
)
def test_a_malformed_host_is_refused(hosts: list[str]) -> None:
    assert refusal("/", Headers([("Host", host) for host in hosts])) is not None


def test_the_page_is_bound_to_the_loopback_alone() -> None:
    """A page on the network would need a secret in its address."""
    with studio._listening_socket(0) as own:
        assert own.getsockname()[0] == "127.0.0.1"


def test_a_process_serves_one_page_only(monkeypatch) -> None:
    monkeypatch.setattr(studio, "_has_served", threading.Event())
    studio._has_served.set()
    own = studio._listening_socket(0)
    with pytest.raises(ConfigError, match="has served a page before"), studio.served(own, None):
        pass
    assert own.fileno() == -1


def test_a_port_belongs_to_one_page(monkeypatch) -> None:
    with studio._listening_socket(0) as own:
        port = own.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} cannot be used"):
            studio._listening_socket(port)
